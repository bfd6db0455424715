#include "models/shard_plan.h"

#include <gtest/gtest.h>

#include "kernels/args.h"

namespace shoal {
namespace {

ModelConfig shape(int heads, int kv_heads, int intermediate, int vocab) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.head_dim = 8;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.hidden_size = heads * 8;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = 2;
  return config;
}

struct Case {
  int heads, kv_heads, intermediate, vocab;
};

/// Some shapes divide evenly and some do not. The last one has fewer MLP units than leaves.
constexpr Case kCases[] = {{8, 8, 192, 900},     {8, 2, 192, 892}, {6, 3, 192, 886},
                           {14, 2, 304, 914},    {9, 3, 200, 886}, {28, 4, 37, 5000},
                           {32, 8, 5632, 32000}, {16, 1, 48, 100}};

TEST(ShardPlan, EveryHeadColumnAndIdBelongsToExactlyOneRank) {
  for (const Case& c : kCases) {
    const ModelConfig config = shape(c.heads, c.kv_heads, c.intermediate, c.vocab);
    for (int size = 1; size <= leaf_count(c.heads); ++size) {
      int heads = 0, columns = 0, ids = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto plan = make_shard_plan(config, {rank, size});
        ASSERT_TRUE(plan.ok()) << plan.status().to_string();
        EXPECT_EQ(plan->q_heads.begin, heads);
        EXPECT_FALSE(plan->q_heads.empty());
        EXPECT_EQ(plan->mlp_columns.begin, columns);
        EXPECT_EQ(plan->vocab.begin, ids);
        EXPECT_TRUE(plan->vocab.end == c.vocab || plan->vocab.end % kVocabChunk == 0);
        EXPECT_EQ(plan->vocab, plan->vocab_of_rank(rank));
        heads = plan->q_heads.end;
        columns = plan->mlp_columns.end;
        ids = plan->vocab.end;
      }
      EXPECT_EQ(heads, c.heads);
      EXPECT_EQ(columns, c.intermediate);
      EXPECT_EQ(ids, c.vocab);
    }
  }
}

TEST(ShardPlan, EveryQueryHeadFindsItsKvHeadOnItsOwnRank) {
  for (const Case& c : kCases) {
    const ModelConfig config = shape(c.heads, c.kv_heads, c.intermediate, c.vocab);
    const int group = c.heads / c.kv_heads;
    for (int size = 1; size <= leaf_count(c.heads); ++size) {
      for (int rank = 0; rank < size; ++rank) {
        const auto plan = make_shard_plan(config, {rank, size});
        ASSERT_EQ(plan->head_begin.size(), static_cast<size_t>(plan->kv_heads.size()) + 1);
        EXPECT_EQ(plan->head_begin.front(), 0);
        EXPECT_EQ(plan->head_begin.back(), plan->q_heads.size());
        for (int kv = 0; kv < plan->kv_heads.size(); ++kv) {
          EXPECT_LT(plan->head_begin[kv], plan->head_begin[kv + 1])
              << "a KV head that nobody reads";
          for (int q = plan->head_begin[kv]; q < plan->head_begin[kv + 1]; ++q) {
            EXPECT_EQ((plan->q_heads.begin + q) / group, plan->kv_heads.begin + kv);
          }
        }
      }
    }
  }
}

TEST(ShardPlan, ASizeBeyondTheLeavesIsRefusedWithTheLimitAndWhy) {
  const ModelConfig config = shape(9, 3, 200, 886);
  for (const int size : {0, -1, 10, 1 << 30}) {
    const auto plan = make_shard_plan(config, {0, size});
    ASSERT_EQ(plan.status().code(), Code::kInvalidArgument);
    EXPECT_NE(plan.status().message().find("1..9"), std::string::npos);
    EXPECT_NE(plan.status().message().find("9 attention heads"), std::string::npos);
  }
  EXPECT_EQ(make_shard_plan(shape(64, 8, 5632, 32000), {0, 17}).status().code(),
            Code::kInvalidArgument);
}

TEST(ShardTable, SlicesFollowThePlan) {
  const ModelConfig config = shape(9, 3, 200, 886);
  const ShardPlan plan =
      *make_shard_plan(config, {1, 2});  // leaves 5..9: q heads 5..9, kv heads 1..3
  const auto slice = [&](const char* name) {
    const auto result = slice_tensor(name, config, plan);
    EXPECT_TRUE(result.ok()) << name;
    return *result;
  };
  EXPECT_EQ(plan.q_heads, (Range{5, 9}));
  EXPECT_EQ(plan.kv_heads, (Range{1, 3}));
  EXPECT_EQ(slice("model.layers.0.self_attn.q_proj.weight").rows, (Range{40, 72}));
  EXPECT_EQ(slice("model.layers.1.self_attn.k_proj.weight").rows, (Range{8, 24}));
  EXPECT_EQ(slice("model.layers.1.self_attn.v_proj.bias").rows, (Range{8, 24}));
  EXPECT_EQ(slice("model.layers.1.self_attn.v_proj.bias").shape, (std::vector<int64_t>{24}));
  EXPECT_EQ(slice("model.layers.0.self_attn.o_proj.weight").columns, (Range{40, 72}));
  EXPECT_EQ(slice("model.layers.0.self_attn.o_proj.bias").rows, (Range{0, 72}));
  EXPECT_EQ(slice("model.layers.0.self_attn.q_norm.weight").shape, (std::vector<int64_t>{8}));
  EXPECT_EQ(slice("model.layers.11.mlp.down_proj.weight").columns, plan.mlp_columns);
  EXPECT_EQ(slice("model.layers.0.mlp.down_proj.weight").shape, (std::vector<int64_t>{72, 200}));
  EXPECT_EQ(slice("lm_head.weight").rows, plan.vocab);
  EXPECT_EQ(slice("model.norm.weight").rows, (Range{0, 72}));
  EXPECT_EQ(slice("model.embed_tokens.weight").shape, (std::vector<int64_t>{886, 72}));
  for (const char* name : {"model.layers.x.mlp.up_proj.weight", "model.layers..mlp.up_proj.weight",
                           "visual.patch", ""}) {
    EXPECT_EQ(slice_tensor(name, config, plan).status().code(), Code::kNotFound) << name;
  }
}

}  // namespace
}  // namespace shoal
