#include "models/shard_plan.h"

#include <algorithm>
#include <climits>

#include "kernels/args.h"
#include "runtime/base/counted.h"

namespace shoal {
namespace {

int mlp_units(const ModelConfig& config) {
  return (config.intermediate_size + kMlpUnitColumns - 1) / kMlpUnitColumns;
}

/// The units of all leaves in leaf_range.
Range units_of(Range leaf_range, int leaves, int units) {
  return {leaf_units(leaf_range.begin, leaves, units).begin,
          leaf_units(leaf_range.end - 1, leaves, units).end};
}

/// "model.layers.12.mlp.up_proj.weight" matches "model.layers.*.mlp.up_proj.weight".
bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (name.size() < head.size() + tail.size() + 1 || !name.starts_with(head) ||
      !name.ends_with(tail))
    return false;
  const std::string_view number = name.substr(head.size(), name.size() - head.size() - tail.size());
  return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Range scaled(Range range, int factor) {
  return {range.begin * factor, range.end * factor};
}

/// The row of the shard table for a tensor; nullptr: there is none.
const ShardRule* find_rule(std::string_view name) {
  for (const ShardRule& rule : shard_table()) {
    if (matches(rule.pattern, name)) return &rule;
  }
  return nullptr;
}

}  // namespace

Range ShardPlan::vocab_of_rank(int rank) const {
  const int64_t chunks = (vocab_size + kVocabChunk - 1) / kVocabChunk;
  const auto cut = [&](int64_t r) {
    return static_cast<int>(std::min<int64_t>(chunks * r / world.size * kVocabChunk, vocab_size));
  };
  return {cut(rank), cut(rank + 1)};
}

Result<ShardPlan> make_shard_plan(const ModelConfig& config, World world, DeviceKind device) {
  ShardPlan plan;
  plan.world = world;
  plan.leaves = leaf_count(config.num_attention_heads, device);
  plan.vocab_size = config.vocab_size;
  if (world.size < 1 || world.size > plan.leaves) {
    return Status::error(
        Code::kInvalidArgument,
        cat("tensor-parallel-size must be in 1..", plan.leaves, " for this model, not ", world.size,
            ": sums are cut into min(", leaf_count(INT_MAX, device), ", ",
            counted(config.num_attention_heads, "attention head"),
            ") leaves so that every size gives the same bits, and a rank needs at least one"));
  }
  plan.leaf_range = leaves_of_rank(world.rank, world.size, plan.leaves);
  plan.q_heads = units_of(plan.leaf_range, plan.leaves, config.num_attention_heads);
  const int group = config.num_attention_heads / config.num_key_value_heads;
  plan.kv_heads = {plan.q_heads.begin / group, (plan.q_heads.end - 1) / group + 1};
  for (int kv = plan.kv_heads.begin; kv <= plan.kv_heads.end; ++kv) {
    plan.head_begin.push_back(std::clamp(kv * group, plan.q_heads.begin, plan.q_heads.end) -
                              plan.q_heads.begin);
  }
  const Range units = units_of(plan.leaf_range, plan.leaves, mlp_units(config));
  plan.mlp_columns = {std::min(units.begin * kMlpUnitColumns, config.intermediate_size),
                      std::min(units.end * kMlpUnitColumns, config.intermediate_size)};
  plan.vocab = plan.vocab_of_rank(world.rank);
  plan.attention_reduce = make_reduce_plan(plan.leaves, config.num_attention_heads, world.size);
  plan.mlp_reduce = make_reduce_plan(plan.leaves, mlp_units(config), world.size);
  return plan;
}

const std::vector<ShardRule>& shard_table() {
  static const std::vector<ShardRule> table = {
      {"model.embed_tokens.weight",
       Shard::kReplicate},  // not copied but mapped: a step reads only the rows of its tokens
      {"lm_head.weight", Shard::kVocabRows},
      {"model.norm.weight", Shard::kReplicate},
      {"model.layers.*.input_layernorm.weight", Shard::kReplicate},
      {"model.layers.*.post_attention_layernorm.weight", Shard::kReplicate},
      {"model.layers.*.self_attn.q_proj.weight", Shard::kQHeadRows},
      {"model.layers.*.self_attn.k_proj.weight", Shard::kKvHeadRows},
      {"model.layers.*.self_attn.v_proj.weight", Shard::kKvHeadRows},
      {"model.layers.*.self_attn.q_proj.bias", Shard::kQHeadRows},
      {"model.layers.*.self_attn.k_proj.bias", Shard::kKvHeadRows},
      {"model.layers.*.self_attn.v_proj.bias", Shard::kKvHeadRows},
      {"model.layers.*.self_attn.q_norm.weight", Shard::kReplicate},
      {"model.layers.*.self_attn.k_norm.weight", Shard::kReplicate},
      {"model.layers.*.self_attn.o_proj.weight", Shard::kHeadColumns},
      {"model.layers.*.self_attn.o_proj.bias", Shard::kReplicate},  // added once, after the sum
      {"model.layers.*.mlp.gate_proj.weight", Shard::kMlpRows},
      {"model.layers.*.mlp.up_proj.weight", Shard::kMlpRows},
      {"model.layers.*.mlp.gate_proj.bias", Shard::kMlpRows},
      {"model.layers.*.mlp.up_proj.bias", Shard::kMlpRows},
      {"model.layers.*.mlp.down_proj.weight", Shard::kMlpColumns},
      {"model.layers.*.mlp.down_proj.bias", Shard::kReplicate},
  };
  return table;
}

Result<TensorSlice> slice_tensor(std::string_view name, const ModelConfig& config,
                                 const ShardPlan& plan) {
  const ShardRule* rule = find_rule(name);
  if (rule == nullptr) {
    return Status::error(Code::kNotFound, cat("tensor ", name, " has no row in the shard table"));
  }
  const int hidden = config.hidden_size, d = config.head_dim;
  const bool vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  const auto rows = [&](int all, Range mine) {
    TensorSlice slice{{all}, mine, {0, 1}};
    if (!vector) {
      slice.shape.push_back(hidden);
      slice.columns = {0, hidden};
    }
    return slice;
  };
  const auto columns = [&](int all, Range mine) {
    return TensorSlice{{hidden, all}, {0, hidden}, mine};
  };
  switch (rule->shard) {
    case Shard::kReplicate: {
      const bool per_head = name.ends_with("q_norm.weight") || name.ends_with("k_norm.weight");
      const int all = vector ? (per_head ? d : hidden) : config.vocab_size;
      return rows(all, {0, all});
    }
    case Shard::kVocabRows:
      return rows(config.vocab_size, plan.vocab);
    case Shard::kQHeadRows:
      return rows(config.num_attention_heads * d, scaled(plan.q_heads, d));
    case Shard::kKvHeadRows:
      return rows(config.num_key_value_heads * d, scaled(plan.kv_heads, d));
    case Shard::kHeadColumns:
      return columns(config.num_attention_heads * d, scaled(plan.q_heads, d));
    case Shard::kMlpRows:
      return rows(config.intermediate_size, plan.mlp_columns);
    case Shard::kMlpColumns:
      return columns(config.intermediate_size, plan.mlp_columns);
  }
  return Status::error(Code::kInternal, "unreachable");
}

}  // namespace shoal
