#include "models/weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace shoal {
namespace {

float element_as_float(const std::byte* data, Dtype dtype, int64_t index) {
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return dtype == Dtype::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store(float value, Dtype dtype, std::byte* out) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out, &value, 4);
    return;
  }
  const uint16_t bits = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(out, &bits, 2);
}

int64_t packed_bytes(Dtype dtype, int64_t n, int64_t k) {
  const int64_t panels = (n + kPanelOutputs - 1) / kPanelOutputs;
  return panels * kPanelOutputs * (dtype == Dtype::kF32 ? k : (k + 1) / 2 * 2) *
         static_cast<int64_t>(dtype_bytes(dtype));
}

/// The steps of the rank's leaves in a row-parallel product, with columns relative to the rank's
/// first. `columns_of` gives a leaf's columns in the model.
template <typename ColumnsOf>
std::vector<LeafStep> leaf_steps(const RankFold& fold, int first_column,
                                 const ColumnsOf& columns_of) {
  std::vector<LeafStep> steps;
  for (const RankFold::Step& step : fold.steps) {
    const Range columns = columns_of(step.leaf);
    steps.push_back(
        {columns.begin - first_column, columns.end - first_column, step.merges, step.contribution});
  }
  return steps;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, const ShardPlan& plan,
         Dtype dtype, ThreadPool& pool, const LoadCallback& progress)
      : checkpoint_(checkpoint),
        config_(config),
        plan_(plan),
        dtype_(dtype),
        pool_(pool),
        progress_(progress) {
    total_ = packed_weight_bytes(config, plan, dtype);
  }

  Result<Weights> load() {
    Weights weights;
    weights.dtype = dtype_;
    SHOAL_ASSIGN_OR_RETURN(
        weights.embedding,
        checkpoint_.tensor("model.embed_tokens.weight", {config_.vocab_size, config_.hidden_size}));
    SHOAL_RETURN_IF_ERROR(vector("model.norm.weight", &weights.final_norm));
    weights.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int i = 0; i < config_.num_hidden_layers; ++i) {
      SHOAL_RETURN_IF_ERROR(
          layer(cat("model.layers.", i, "."), &weights.layers[static_cast<size_t>(i)]));
    }
    SHOAL_RETURN_IF_ERROR(lm_head(&weights.lm_head));
    weights.packed_bytes = done_;
    return weights;
  }

 private:
  Status layer(const std::string& prefix, LayerWeights* out) {
    const int d = config_.head_dim;
    const int q = plan_.q_heads.size() * d, kv = plan_.kv_heads.size() * d,
              mlp = plan_.mlp_columns.size();
    const std::string attention = prefix + "self_attn.", feed = prefix + "mlp.";
    SHOAL_RETURN_IF_ERROR(vector(prefix + "input_layernorm.weight", &out->input_norm));
    SHOAL_RETURN_IF_ERROR(
        vector(prefix + "post_attention_layernorm.weight", &out->post_attention_norm));
    SHOAL_ASSIGN_OR_RETURN(out->qkv, PackedMatrix::allocate(dtype_, q + 2 * kv, config_.hidden_size,
                                                            {{0, config_.hidden_size, 0, 0}}));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "q_proj.weight", 0, &out->qkv));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "k_proj.weight", q, &out->qkv));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "v_proj.weight", q + kv, &out->qkv));
    if (config_.qkv_bias) {
      for (const char* name : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
        SHOAL_RETURN_IF_ERROR(vector(attention + name, &out->qkv_bias));
      }
    }
    if (config_.qk_norm) {
      SHOAL_RETURN_IF_ERROR(vector(attention + "q_norm.weight", &out->q_norm));
      SHOAL_RETURN_IF_ERROR(vector(attention + "k_norm.weight", &out->k_norm));
    }
    const auto rank = static_cast<size_t>(plan_.world.rank);
    SHOAL_ASSIGN_OR_RETURN(
        out->o,
        PackedMatrix::allocate(
            dtype_, config_.hidden_size, q,
            leaf_steps(plan_.attention_reduce.ranks[rank], plan_.q_heads.begin * d, [&](int leaf) {
              const Range heads = leaf_units(leaf, plan_.leaves, config_.num_attention_heads);
              return Range{heads.begin * d, heads.end * d};
            })));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "o_proj.weight", 0, &out->o));
    if (config_.o_bias) SHOAL_RETURN_IF_ERROR(vector(attention + "o_proj.bias", &out->o_bias));
    if (mlp > 0) SHOAL_RETURN_IF_ERROR(mlp_part(feed, mlp, out));
    if (config_.mlp_bias) SHOAL_RETURN_IF_ERROR(vector(feed + "down_proj.bias", &out->down_bias));
    return {};
  }

  Status mlp_part(const std::string& feed, int mlp, LayerWeights* out) {
    SHOAL_ASSIGN_OR_RETURN(out->gate_up,
                           PackedMatrix::allocate(dtype_, 2 * mlp, config_.hidden_size,
                                                  {{0, config_.hidden_size, 0, 0}}));
    SHOAL_RETURN_IF_ERROR(matrix(feed + "gate_proj.weight", 0, &out->gate_up));
    SHOAL_RETURN_IF_ERROR(matrix(feed + "up_proj.weight", mlp, &out->gate_up));
    if (config_.mlp_bias) {
      SHOAL_RETURN_IF_ERROR(vector(feed + "gate_proj.bias", &out->gate_up_bias));
      SHOAL_RETURN_IF_ERROR(vector(feed + "up_proj.bias", &out->gate_up_bias));
    }
    const int units = (config_.intermediate_size + kMlpUnitColumns - 1) / kMlpUnitColumns;
    const auto columns_of = [&](int leaf) {
      const Range u = leaf_units(leaf, plan_.leaves, units);
      return Range{u.begin * kMlpUnitColumns,
                   std::min(u.end * kMlpUnitColumns, config_.intermediate_size)};
    };
    const RankFold& fold = plan_.mlp_reduce.ranks[static_cast<size_t>(plan_.world.rank)];
    SHOAL_ASSIGN_OR_RETURN(
        out->down, PackedMatrix::allocate(dtype_, config_.hidden_size, mlp,
                                          leaf_steps(fold, plan_.mlp_columns.begin, columns_of)));
    return matrix(feed + "down_proj.weight", 0, &out->down);
  }

  Status lm_head(PackedMatrix* out) {
    if (plan_.vocab.empty()) return {};
    SHOAL_ASSIGN_OR_RETURN(*out,
                           PackedMatrix::allocate(dtype_, plan_.vocab.size(), config_.hidden_size,
                                                  {{0, config_.hidden_size, 0, 0}}));
    const char* name = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    SHOAL_ASSIGN_OR_RETURN(TensorView view,
                           checkpoint_.tensor(name, {config_.vocab_size, config_.hidden_size}));
    return pack(view, plan_.vocab, {0, config_.hidden_size}, 0, out);
  }

  /// Appends the rank's slice of a vector, widened.
  Status vector(const std::string& name, std::vector<float>* out) {
    SHOAL_ASSIGN_OR_RETURN(const TensorSlice slice, slice_tensor(name, config_, plan_));
    SHOAL_ASSIGN_OR_RETURN(const TensorView view, checkpoint_.tensor(name, slice.shape));
    for (int i = slice.rows.begin; i < slice.rows.end; ++i)
      out->push_back(element_as_float(view.data, view.dtype, i));
    return {};
  }

  /// Packs the rank's slice of a matrix into *out, from its row `at` on.
  Status matrix(const std::string& name, int at, PackedMatrix* out) {
    SHOAL_ASSIGN_OR_RETURN(const TensorSlice slice, slice_tensor(name, config_, plan_));
    SHOAL_ASSIGN_OR_RETURN(const TensorView view, checkpoint_.tensor(name, slice.shape));
    return pack(view, slice.rows, slice.columns, at, out);
  }

  Status pack(const TensorView& view, Range rows, Range columns, int at, PackedMatrix* out) {
    const int64_t stride = view.shape[1];
    const auto bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
    // Each thread packs whole panels, so that no two threads write to the same panel.
    const int first_panel = at / kPanelOutputs, last_panel = (at + rows.size() - 1) / kPanelOutputs;
    pool_.split(last_panel - first_panel + 1, [&](int64_t begin, int64_t end) {
      const int from = std::max<int>(at, static_cast<int>(first_panel + begin) * kPanelOutputs);
      const int to =
          std::min<int>(at + rows.size(), static_cast<int>(first_panel + end) * kPanelOutputs);
      const int64_t source_row = rows.begin + (from - at);
      const std::byte* source = view.data + (source_row * stride + columns.begin) * bytes;
      if (view.dtype == dtype_) {
        out->pack_rows(from, to - from, source, stride);
        return;
      }
      std::vector<std::byte> row(static_cast<size_t>(columns.size()) * dtype_bytes(dtype_));
      for (int r = from; r < to; ++r, source += stride * bytes) {
        for (int64_t c = 0; c < columns.size(); ++c) {
          store(element_as_float(source, view.dtype, c), dtype_,
                row.data() + c * static_cast<int64_t>(dtype_bytes(dtype_)));
        }
        out->pack_rows(r, 1, row.data(), columns.size());
      }
    });
    done_ += static_cast<int64_t>(rows.size()) * columns.size() *
             static_cast<int64_t>(dtype_bytes(dtype_));
    if (progress_) progress_(std::min(done_, total_), total_);
    return {};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  const Dtype dtype_;
  ThreadPool& pool_;
  const LoadCallback& progress_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

Result<Dtype> resolve_dtype(const Checkpoint& checkpoint, std::optional<Dtype> asked) {
  const Result<TensorView> found =
      checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {-1, -1});
  // The checkpoint exists, so a missing tensor is damage, not "not found".
  if (!found.ok())
    return found.status().because_of(Code::kInvalidArgument, "find out the weights' type");
  const TensorView& view = *found;
  if (!asked || *asked == view.dtype) return view.dtype;
  if (*asked != Dtype::kF32 && view.dtype != Dtype::kF32) {
    return Status::error(Code::kFailedPrecondition,
                         cat("--dtype ", dtype_name(*asked), ": the checkpoint is ",
                             dtype_name(view.dtype), ", which ", dtype_name(*asked),
                             " cannot hold; use auto, ", dtype_name(view.dtype), " or float32"));
  }
  return *asked;
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                             const ShardPlan& plan, Dtype dtype, ThreadPool& pool,
                             const LoadCallback& progress) {
  return Loader(checkpoint, config, plan, dtype, pool, progress).load();
}

int64_t packed_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  const int64_t d = config.head_dim, hidden = config.hidden_size, mlp = plan.mlp_columns.size();
  const int64_t q = plan.q_heads.size() * d, kv = plan.kv_heads.size() * d;
  const int64_t layer = packed_bytes(dtype, q + 2 * kv, hidden) + packed_bytes(dtype, hidden, q) +
                        packed_bytes(dtype, 2 * mlp, hidden) + packed_bytes(dtype, hidden, mlp);
  return config.num_hidden_layers * layer + packed_bytes(dtype, plan.vocab.size(), hidden);
}

}  // namespace shoal
