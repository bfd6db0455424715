#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/base/world.h"

namespace shoal {

/// The part of a model that one rank holds. Everything follows from the leaves that the rank owns
/// (runtime/base/reduce_tree.h), so the number of heads or columns need not be divisible by the
/// number of ranks.
struct ShardPlan {
  World world;
  int leaves = 0;
  Range leaf_range;
  Range q_heads;  ///< the query heads of its leaves
  /// The KV heads that its q heads read. If q heads of two ranks share a KV head, both ranks hold
  /// it.
  Range kv_heads;
  /// The columns of its leaves, which are cut in units of kMlpUnitColumns. May be empty in tiny
  /// models.
  Range mlp_columns;
  Range vocab;  ///< whole chunks of kVocabChunk ids; may be empty
  /// [kv_heads + 1]: where the local q heads of each local kv head begin (AttentionArgs).
  std::vector<int32_t> head_begin;
  ReducePlan attention_reduce;  ///< of o_proj
  ReducePlan mlp_reduce;        ///< of down_proj

  Range vocab_of_rank(int rank) const;
  int vocab_size = 0;
};

/// The number of columns of the intermediate dimension that are never split; the last unit may have
/// fewer.
inline constexpr int kMlpUnitColumns = 16;

/// device: what the ranks compute on. INVALID_ARGUMENT: the world size is below 1 or above the
/// model's number of leaves there; the message says what the limit is and why.
Result<ShardPlan> make_shard_plan(const ModelConfig& config, World world,
                                  DeviceKind device = DeviceKind::kCpu);

/// How one kind of tensor is cut. Rows are the outputs of a product, columns its inputs.
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
  std::string_view pattern;  ///< tensor name; `*` matches the layer number
  Shard shard;
};

/// The table of all rules, one row per kind of tensor.
const std::vector<ShardRule>& shard_table();

/// The whole shape that a tensor must have by the config, and the part of it that the rank reads.
struct TensorSlice {
  std::vector<int64_t> shape;
  Range rows;     ///< of dimension 0
  Range columns;  ///< of dimension 1; {0, 1} for vectors
};

/// NOT_FOUND: no rule for that name.
Result<TensorSlice> slice_tensor(std::string_view name, const ModelConfig& config,
                                 const ShardPlan& plan);

}  // namespace shoal
