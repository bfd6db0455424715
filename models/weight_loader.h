#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/packed_matrix.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/cat.h"

namespace shoal {

/// Element `index` of a tensor as float32, which keeps its value.
float element_as_float(const std::byte* data, Dtype dtype, int64_t index);

/// Writes a value as an element of dtype, rounded once.
void store_element(float value, Dtype dtype, std::byte* out);

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

/// A checkpoint of which only the shapes are known. Its tensors have no data.
class ShapesOnly {
 public:
  static Result<TensorView> tensor(const std::string&, const std::vector<int64_t>& shape) {
    TensorView view;
    view.shape = shape;
    return view;
  }
};

/// Reads one rank's slices of a checkpoint, in the same order for every kind of device, and hands
/// them to a Store. The Store makes its own Matrix, Vector and Table of them:
///   Result<Matrix> make_matrix(int n, int k, std::vector<LeafStep> leaves);
///   Status fill(Matrix& matrix, int row, const TensorView& view, Range rows, Range columns);
///     copies the view's part into the matrix, from its row `row` on; rows come in their order
///   Result<Vector> make_vector(std::vector<float> values);
///   Result<Table> make_table(const TensorView& embedding);
///   bool share_rows(const Table& table, Range rows, Matrix* out);
///     makes *out of these rows of the table without a copy; false if that is not possible
/// What a model does not have stays as its type's constructor makes it. If Source is ShapesOnly,
/// the Store gets views without data and vectors of zeros, and so learns how much there will be.
template <typename Store, typename Source = Checkpoint>
class WeightLoader {
 public:
  using Weights = WeightsOf<typename Store::Matrix, typename Store::Vector, typename Store::Table>;
  using Layer = typename Weights::Layer;

  WeightLoader(const Source& checkpoint, const ModelConfig& config, const ShardPlan& plan,
               Store& store)
      : checkpoint_(checkpoint), config_(config), plan_(plan), store_(store) {}

  Result<Weights> load() {
    Weights weights;
    SHOAL_ASSIGN_OR_RETURN(
        const TensorView embedding,
        checkpoint_.tensor("model.embed_tokens.weight", {config_.vocab_size, config_.hidden_size}));
    SHOAL_ASSIGN_OR_RETURN(weights.embedding, store_.make_table(embedding));
    SHOAL_RETURN_IF_ERROR(vector({"model.norm.weight"}, &weights.final_norm));
    weights.layers.resize(static_cast<size_t>(config_.num_hidden_layers));
    for (int i = 0; i < config_.num_hidden_layers; ++i) {
      SHOAL_RETURN_IF_ERROR(
          layer(cat("model.layers.", i, "."), &weights.layers[static_cast<size_t>(i)]));
    }
    SHOAL_RETURN_IF_ERROR(lm_head(&weights));
    return weights;
  }

 private:
  Status layer(const std::string& prefix, Layer* out) {
    const int d = config_.head_dim;
    const int q = plan_.q_heads.size() * d, kv = plan_.kv_heads.size() * d,
              mlp = plan_.mlp_columns.size();
    const std::string attention = prefix + "self_attn.", feed = prefix + "mlp.";
    SHOAL_RETURN_IF_ERROR(vector({prefix + "input_layernorm.weight"}, &out->input_norm));
    SHOAL_RETURN_IF_ERROR(
        vector({prefix + "post_attention_layernorm.weight"}, &out->post_attention_norm));
    SHOAL_ASSIGN_OR_RETURN(out->qkv, whole(q + 2 * kv));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "q_proj.weight", 0, &out->qkv));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "k_proj.weight", q, &out->qkv));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "v_proj.weight", q + kv, &out->qkv));
    if (config_.qkv_bias) {
      SHOAL_RETURN_IF_ERROR(
          vector({attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"},
                 &out->qkv_bias));
    }
    if (config_.qk_norm) {
      SHOAL_RETURN_IF_ERROR(vector({attention + "q_norm.weight"}, &out->q_norm));
      SHOAL_RETURN_IF_ERROR(vector({attention + "k_norm.weight"}, &out->k_norm));
    }
    const auto rank = static_cast<size_t>(plan_.world.rank);
    const auto columns_of = [&](int leaf) {
      const Range heads = leaf_units(leaf, plan_.leaves, config_.num_attention_heads);
      return Range{heads.begin * d, heads.end * d};
    };
    SHOAL_ASSIGN_OR_RETURN(out->o,
                           store_.make_matrix(config_.hidden_size, q,
                                              leaf_steps(plan_.attention_reduce.ranks[rank],
                                                         plan_.q_heads.begin * d, columns_of)));
    SHOAL_RETURN_IF_ERROR(matrix(attention + "o_proj.weight", 0, &out->o));
    if (config_.o_bias) SHOAL_RETURN_IF_ERROR(vector({attention + "o_proj.bias"}, &out->o_bias));
    if (mlp > 0) SHOAL_RETURN_IF_ERROR(mlp_part(feed, mlp, out));
    if (config_.mlp_bias) SHOAL_RETURN_IF_ERROR(vector({feed + "down_proj.bias"}, &out->down_bias));
    return {};
  }

  Status mlp_part(const std::string& feed, int mlp, Layer* out) {
    SHOAL_ASSIGN_OR_RETURN(out->gate_up, whole(2 * mlp));
    SHOAL_RETURN_IF_ERROR(matrix(feed + "gate_proj.weight", 0, &out->gate_up));
    SHOAL_RETURN_IF_ERROR(matrix(feed + "up_proj.weight", mlp, &out->gate_up));
    if (config_.mlp_bias) {
      SHOAL_RETURN_IF_ERROR(
          vector({feed + "gate_proj.bias", feed + "up_proj.bias"}, &out->gate_up_bias));
    }
    const int units = (config_.intermediate_size + kMlpUnitColumns - 1) / kMlpUnitColumns;
    const auto columns_of = [&](int leaf) {
      const Range u = leaf_units(leaf, plan_.leaves, units);
      return Range{u.begin * kMlpUnitColumns,
                   std::min(u.end * kMlpUnitColumns, config_.intermediate_size)};
    };
    const RankFold& fold = plan_.mlp_reduce.ranks[static_cast<size_t>(plan_.world.rank)];
    SHOAL_ASSIGN_OR_RETURN(
        out->down, store_.make_matrix(config_.hidden_size, mlp,
                                      leaf_steps(fold, plan_.mlp_columns.begin, columns_of)));
    return matrix(feed + "down_proj.weight", 0, &out->down);
  }

  Status lm_head(Weights* out) {
    if (plan_.vocab.empty()) return {};
    const bool tied = config_.tie_word_embeddings;
    const char* name = tied ? "model.embed_tokens.weight" : "lm_head.weight";
    SHOAL_ASSIGN_OR_RETURN(const TensorView view,
                           checkpoint_.tensor(name, {config_.vocab_size, config_.hidden_size}));
    if (tied && store_.share_rows(out->embedding, plan_.vocab, &out->lm_head)) return {};
    SHOAL_ASSIGN_OR_RETURN(out->lm_head, whole(plan_.vocab.size()));
    return store_.fill(out->lm_head, 0, view, plan_.vocab, {0, config_.hidden_size});
  }

  /// A column-parallel matrix of `rows` rows, which has one leaf.
  Result<typename Store::Matrix> whole(int rows) {
    return store_.make_matrix(rows, config_.hidden_size, {{0, config_.hidden_size, 0, 0}});
  }

  /// Reads the rank's slices of vectors, widened, one after the other.
  Status vector(const std::vector<std::string>& names, typename Store::Vector* out) {
    std::vector<float> values;
    for (const std::string& name : names) {
      SHOAL_ASSIGN_OR_RETURN(const TensorSlice slice, slice_tensor(name, config_, plan_));
      SHOAL_ASSIGN_OR_RETURN(const TensorView view, checkpoint_.tensor(name, slice.shape));
      for (int i = slice.rows.begin; i < slice.rows.end; ++i)
        values.push_back(view.data == nullptr ? 0 : element_as_float(view.data, view.dtype, i));
    }
    SHOAL_ASSIGN_OR_RETURN(*out, store_.make_vector(std::move(values)));
    return {};
  }

  /// Reads the rank's slice of a matrix into *out, from its row `at` on.
  Status matrix(const std::string& name, int at, typename Store::Matrix* out) {
    SHOAL_ASSIGN_OR_RETURN(const TensorSlice slice, slice_tensor(name, config_, plan_));
    SHOAL_ASSIGN_OR_RETURN(const TensorView view, checkpoint_.tensor(name, slice.shape));
    return store_.fill(*out, at, view, slice.rows, slice.columns);
  }

  const Source& checkpoint_;
  const ModelConfig& config_;
  const ShardPlan& plan_;
  Store& store_;
};

}  // namespace shoal
