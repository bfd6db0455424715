#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/weight_loader.h"
#include "models/weight_sum.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"

namespace shoal {
namespace {

int64_t packed_bytes(Dtype dtype, int64_t n, int64_t k) {
  const int64_t panels = (n + kPanelOutputs - 1) / kPanelOutputs;
  return panels * kPanelOutputs * (dtype == Dtype::kF32 ? k : (k + 1) / 2 * 2) *
         static_cast<int64_t>(dtype_bytes(dtype));
}

/// Packs what a rank reads, and keeps count of it.
class PackedStore {
 public:
  using Matrix = PackedMatrix;
  using Vector = std::vector<float>;
  using Table = TensorView;

  PackedStore(Dtype dtype, ThreadPool& pool, const LoadCallback& progress, int64_t total)
      : dtype_(dtype), pool_(pool), progress_(progress), total_(total) {}

  Result<PackedMatrix> make_matrix(int n, int k, std::vector<LeafStep> leaves) {
    return PackedMatrix::allocate(dtype_, n, k, std::move(leaves));
  }
  Result<std::vector<float>> make_vector(std::vector<float> values) { return values; }
  Result<TensorView> make_table(const TensorView& embedding) { return embedding; }
  bool share_rows(const TensorView&, Range, PackedMatrix*) { return false; }

  Status fill(PackedMatrix& out, int at, const TensorView& view, Range rows, Range columns) {
    // Each thread packs whole panels, so that no two threads write to the same panel.
    const int first_panel = at / kPanelOutputs, last_panel = (at + rows.size() - 1) / kPanelOutputs;
    pool_.split(last_panel - first_panel + 1, [&](int64_t begin, int64_t end) {
      const int from = std::max<int>(at, static_cast<int>(first_panel + begin) * kPanelOutputs);
      const int to =
          std::min<int>(at + rows.size(), static_cast<int>(first_panel + end) * kPanelOutputs);
      const int source = rows.begin + (from - at);
      pack(out, from, view, {source, source + to - from}, columns);
    });
    done_ += static_cast<int64_t>(rows.size()) * columns.size() *
             static_cast<int64_t>(dtype_bytes(dtype_));
    if (progress_) progress_(std::min(done_, total_), total_);
    return {};
  }

  int64_t done() const { return done_; }

 private:
  void pack(PackedMatrix& out, int at, const TensorView& view, Range rows, Range columns) const {
    const int64_t stride = view.shape[1];
    const auto bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
    const std::byte* source = view.data + (rows.begin * stride + columns.begin) * bytes;
    if (view.dtype == dtype_) {
      out.pack_rows(at, rows.size(), source, stride);
      return;
    }
    std::vector<std::byte> row(static_cast<size_t>(columns.size()) * dtype_bytes(dtype_));
    for (int r = 0; r < rows.size(); ++r, source += stride * bytes) {
      for (int64_t c = 0; c < columns.size(); ++c) {
        store_element(element_as_float(source, view.dtype, c), dtype_,
                      row.data() + c * static_cast<int64_t>(dtype_bytes(dtype_)));
      }
      out.pack_rows(at + r, 1, row.data(), columns.size());
    }
  }

  const Dtype dtype_;
  ThreadPool& pool_;
  const LoadCallback& progress_;
  const int64_t total_;
  int64_t done_ = 0;
};

void add(const PackedMatrix& matrix, WeightSum* sum) {
  const int panels = matrix.panels();
  if (panels > 0) sum->add(matrix.panel(0), static_cast<size_t>(panels * matrix.panel_bytes()));
}

void add(const std::vector<float>& values, WeightSum* sum) {
  sum->add(values.data(), values.size() * sizeof(float));
}

/// The ranks share the rows of the table, because each of them maps all of it.
uint64_t sum_of(const Weights& weights, World world, ThreadPool& pool) {
  WeightSum sum(pool);
  const TensorView& table = weights.embedding;
  const int64_t row = table.shape[1] * static_cast<int64_t>(dtype_bytes(table.dtype));
  const int64_t begin = table.shape[0] * world.rank / world.size,
                end = table.shape[0] * (world.rank + 1) / world.size;
  sum.add(table.data + begin * row, static_cast<size_t>((end - begin) * row));
  add(weights.final_norm, &sum);
  add(weights.lm_head, &sum);
  for (const LayerWeights& layer : weights.layers) {
    for (const auto* vector :
         {&layer.input_norm, &layer.post_attention_norm, &layer.qkv_bias, &layer.q_norm,
          &layer.k_norm, &layer.o_bias, &layer.gate_up_bias, &layer.down_bias})
      add(*vector, &sum);
    for (const auto* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      add(*matrix, &sum);
  }
  return sum.value();
}

using PackedWeights = WeightsOf<PackedMatrix, std::vector<float>, TensorView>;

}  // namespace

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

void store_element(float value, Dtype dtype, std::byte* out) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out, &value, 4);
    return;
  }
  const uint16_t bits = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(out, &bits, 2);
}

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
  const int64_t total = packed_weight_bytes(config, plan, dtype);
  PackedStore store(dtype, pool, progress, total);
  Weights weights;
  SHOAL_ASSIGN_OR_RETURN(static_cast<PackedWeights&>(weights),
                         WeightLoader<PackedStore>(checkpoint, config, plan, store).load());
  weights.dtype = dtype;
  weights.packed_bytes = store.done();
  const Clock::time_point began = Clock::now();
  weights.sum = sum_of(weights, plan.world, pool);
  log_debug(
      cat("the checksum of the weights took ", std::lround(1e6 * seconds_since(began)), " us"));
  if (progress) progress(total, total);  // the padding of the panels was never read
  return weights;
}

int64_t packed_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  const int64_t d = config.head_dim, hidden = config.hidden_size, mlp = plan.mlp_columns.size();
  const int64_t q = plan.q_heads.size() * d, kv = plan.kv_heads.size() * d;
  const int64_t layer = packed_bytes(dtype, q + 2 * kv, hidden) + packed_bytes(dtype, hidden, q) +
                        packed_bytes(dtype, 2 * mlp, hidden) + packed_bytes(dtype, hidden, mlp);
  return config.num_hidden_layers * layer + packed_bytes(dtype, plan.vocab.size(), hidden);
}

}  // namespace shoal
