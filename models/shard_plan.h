#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/base/world.h"

namespace shoal {

/// What of a model one rank holds. Everything follows from the leaves it owns
/// (runtime/base/reduce_tree.h), so a tensor-parallel size need not divide anything.
struct ShardPlan {
  World world;
  int leaves = 0;
  Range leaf_range;
  Range q_heads;   ///< the heads of its leaves
  Range kv_heads;  ///< those that its q heads read; a KV head shared by two ranks' q heads lives on
                   ///< both
  Range mlp_columns;  ///< the 16-column units of its leaves; may be empty in tiny models
  Range vocab;        ///< whole chunks of kVocabChunk ids; may be empty
  std::vector<int32_t>
      head_begin;  ///< [kv_heads + 1]: local q heads of each local kv head (AttentionArgs)
  ReducePlan attention_reduce;  ///< of o_proj
  ReducePlan mlp_reduce;        ///< of down_proj

  Range vocab_of_rank(int rank) const;
  int vocab_size = 0;
};

/// Columns of the intermediate dimension that stay together; the last unit may be partial.
inline constexpr int kMlpUnitColumns = 16;

/// INVALID_ARGUMENT: world size below 1, or beyond the model's leaves; the text says what the limit
/// is and why.
Result<ShardPlan> make_shard_plan(const ModelConfig& config, World world);

/// How one kind of tensor is cut. Rows are outputs, columns inputs of a product.
enum class Shard {
  kReplicate,    ///< every rank has all of it
  kVocabRows,    ///< the rank's vocabulary chunks
  kQHeadRows,    ///< rows of its q heads
  kKvHeadRows,   ///< rows of its kv heads
  kHeadColumns,  ///< columns of its q heads, leaf by leaf: a row-parallel product
  kMlpRows,
  kMlpColumns,  ///< columns of its MLP units, leaf by leaf: a row-parallel product
};

struct ShardRule {
  std::string_view pattern;  ///< tensor name; `*` stands for the layer number
  Shard shard;
};

/// The table, one row per kind of tensor.
const std::vector<ShardRule>& shard_table();

/// A tensor's whole shape by the config, and the part of it that the rank reads.
struct TensorSlice {
  std::vector<int64_t> shape;
  Range rows;     ///< of dimension 0
  Range columns;  ///< of dimension 1; {0, 1} for vectors
};

/// NOT_FOUND: no rule for that name.
Result<TensorSlice> slice_tensor(std::string_view name, const ModelConfig& config,
                                 const ShardPlan& plan);

}  // namespace shoal
