// The bundled model in a rank of its own. It checks what is allocated before a rank reports that it
// is ready.
#include "runtime/worker/model_runner.h"

#include <cstring>
#include <fstream>
#include <gtest/gtest.h>

#include "models/cpu_layers.h"
#include "runtime/comm/single_communicator.h"
#include "tests/in_child.h"
#include "tests/runtime/worker/model_start.h"

namespace shoal {
namespace {

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

constexpr const char* kDemo = SHOAL_SOURCE_DIR "/models/demo";

const KernelTable& reference() {
  return *available_kernels().back();
}

ModelStart start_for(int max_num_batched_tokens) {
  ModelStart start = model_start(kDemo);
  start.dtype = Dtype::kF32;
  start.limits.max_num_batched_tokens = max_num_batched_tokens;
  start.limits.kv_blocks = 4;
  start.all_logits = true;
  return start;
}

TEST(ModelRunner, WhatAStepNeedsIsThereBeforeTheFirstStep) {
  constexpr int kRows = 4096;
  const std::string said = in_child([]() -> std::string {
    auto runner =
        ModelRunner::load(start_for(kRows), reference(), {{0, 1}}, [](const LoadProgress&) {});
    if (!runner.ok()) return runner.status().to_string();
    const auto config = load_model_config(kDemo);
    if (!config.ok()) return config.status().to_string();
    const auto plan = make_shard_plan(*config, {0, 1});
    if (!plan.ok()) return plan.status().to_string();
    const int64_t bytes = CpuLayers::activation_bytes(*config, *plan, Dtype::kF32, kRows) +
                          ModelRunner::logit_bytes(*plan, kRows) +
                          KvCache::bytes(config->num_hidden_layers, 4, plan->kv_heads.size(),
                                         config->head_dim, Dtype::kF32);
    const int64_t before = resident_bytes();
    const std::unique_ptr<Communicator> communicator = make_single_communicator();
    if (const Status taken = (*runner)->take_memory(*communicator); !taken.ok())
      return taken.to_string();
    const int64_t more = resident_bytes() - before;
    // Allow for the kernel's counting, which updates the page count in batches of some dozen pages
    // per thread.
    return more > bytes - bytes / 100 ? "" : cat(more, " bytes more of ", bytes);
  });
  EXPECT_EQ(said, "");
}

/// Sequences of one token that want everything that takes memory on rank 0.
StepPlan sampled_batch(int sequences) {
  StepPlan plan{1, {}};
  for (int i = 0; i < sequences; ++i) {
    SequenceStep sequence;
    sequence.id = static_cast<uint64_t>(i);
    sequence.token_ids = {i * 37 % 800 + 3};
    sequence.block_table = {0};
    sequence.sample = true;
    sequence.sampling.top_p = 0.9F;
    sequence.sampling.seed = static_cast<uint64_t>(i);
    sequence.sampling.repetition_penalty = 1.1F;
    sequence.sampling.logprobs = 4;
    sequence.history = sequence.token_ids;
    sequence.history_prompt_tokens = 1;
    plan.sequences.push_back(std::move(sequence));
  }
  return plan;
}

// Large vocabularies make the rows of logits the largest thing in a step: 256 rows of the demo
// model's 4096 ids have 4 MiB.
TEST(ModelRunner, AFullSampledBatchTakesNoMoreMemory) {
#ifdef SHOAL_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps what was freed";
#endif
  constexpr int kSequences = 256;
  const std::string said = in_child([]() -> std::string {
    ModelStart start = start_for(kSequences);
    start.kernels = "auto";
    start.all_logits = false;
    start.limits.max_num_seqs = kSequences;
    auto runner = ModelRunner::load(start, reference(), {{0, 1}}, [](const LoadProgress&) {});
    if (!runner.ok()) return runner.status().to_string();
    const std::unique_ptr<Communicator> communicator = make_single_communicator();
    if (const Status taken = (*runner)->take_memory(*communicator); !taken.ok())
      return taken.to_string();
    if (const Status warm = (*runner)->warm_up(); !warm.ok()) return warm.to_string();
    const StepPlan plan = sampled_batch(kSequences);
    const int64_t before = resident_bytes();
    const Result<StepResult> result = (*runner)->run(plan);
    if (!result.ok()) return result.status().to_string();
    const int64_t more = resident_bytes() - before;
    // The batch's own lists, the answer, and pages of the code and of the weights.
    return more < 2 << 20 ? "" : cat(more, " bytes more");
  });
  EXPECT_EQ(said, "");
}

TEST(ModelRunner, RowsBeyondTheRoomAreRefused) {
  ModelStart start = start_for(16);
  start.all_logits = false;
  start.limits.max_num_seqs = 2;
  auto runner = ModelRunner::load(start, reference(), {{0, 1}}, [](const LoadProgress&) {});
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  ASSERT_TRUE((*runner)->take_memory(*communicator).ok());
  EXPECT_TRUE((*runner)->run(sampled_batch(2)).ok());
  const Status status = (*runner)->run(sampled_batch(3)).status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("wants 3 rows of logits; there is room for 2"),
            std::string_view::npos)
      << status.to_string();
}

/// The logits of every token of a prompt that is processed in chunks of `chunk` tokens.
std::vector<float> logits_of(bool warmed_up, int32_t chunk) {
  auto runner = ModelRunner::load(start_for(16), reference(), {{0, 1}}, [](const LoadProgress&) {});
  EXPECT_TRUE(runner.ok()) << runner.status().to_string();
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  EXPECT_TRUE((*runner)->take_memory(*communicator).ok());
  EXPECT_TRUE(!warmed_up || (*runner)->warm_up().ok());
  std::vector<float> all;
  StepPlan plan;
  for (int32_t begin = 0; begin < 24; begin += chunk) {
    SequenceStep sequence;
    for (int32_t i = begin; i < begin + chunk; ++i) sequence.token_ids.push_back(i * 37 % 800 + 3);
    sequence.first_position = begin;
    sequence.block_table = {0, 3};  // one of them is the block that the warm-up has written to
    sequence.all_logits = true;
    plan = {plan.step + 1, {sequence}};
    const Result<StepResult> result = (*runner)->run(plan);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    if (result.ok()) all.insert(all.end(), result->logits.begin(), result->logits.end());
  }
  return all;
}

TEST(ModelRunner, AWarmUpChangesNoLaterBits) {
  for (const int32_t chunk : {1, 8}) {
    const std::vector<float> cold = logits_of(false, chunk), warm = logits_of(true, chunk);
    ASSERT_GT(cold.size(), 0u);
    ASSERT_EQ(cold.size(), warm.size());
    EXPECT_EQ(std::memcmp(cold.data(), warm.data(), cold.size() * sizeof(float)), 0)
        << "chunks of " << chunk;
  }
}

TEST(ModelRunner, AWarmUpCallsTheHookAfterEveryPartOfALayer) {
  auto runner = ModelRunner::load(start_for(16), reference(), {{0, 1}}, [](const LoadProgress&) {});
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  const std::unique_ptr<Communicator> communicator = make_single_communicator();
  ASSERT_TRUE((*runner)->take_memory(*communicator).ok());
  int calls = 0, last = 1 << 30;
  const auto moved = [&] {
    return ++calls < last ? Status()
                          : Status::error(Code::kUnavailable, "the front has given this step up");
  };
  (*runner)->set_signs({.moved = moved, .waits = {}});
  EXPECT_TRUE((*runner)->warm_up().ok());
  const int layers = load_model_config(kDemo)->num_hidden_layers;
  EXPECT_EQ(calls, 7 * layers + 1) << "7 parts in each layer, and the product with lm_head";
  for (const int end : {1, 2, 7, 8, 7 * layers + 1}) {
    calls = 0;
    last = end;
    EXPECT_EQ((*runner)->warm_up().code(), Code::kUnavailable) << end;
    EXPECT_EQ(calls, end) << "nothing is computed after an error";
  }
}

}  // namespace
}  // namespace shoal
