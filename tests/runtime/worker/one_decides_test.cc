// What ranks must agree on, one decides: real ranks that measure different things get what the
// front has chosen. Like the server, this program is its own worker (see main below).
#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/device/class_hashes.h"
#include "runtime/supervisor/worker_group.h"
#include "runtime/worker/model_work.h"
#include "runtime/worker/worker_main.h"
#include "tests/guard.h"
#include "tests/runtime/worker/model_start.h"

namespace shoal {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kDeviceBytes = int64_t{64} << 20;

/// What each rank finds around it, as variables of its environment.
using Facts = std::vector<std::vector<std::string>>;

ModelStart choice_on_cpu() {
  ModelStart choice = model_start(SHOAL_TEST_DATA "/oracle/llama-nine-heads");
  choice.kernels = "reference";
  choice.limits = {
      .max_num_seqs = 2, .max_num_batched_tokens = 16, .kv_blocks = 8, .max_model_len = 128};
  return choice;
}

ModelStart choice_on_devices(int32_t planned, int32_t least = 1) {
  ModelStart choice = choice_on_cpu();
  choice.device = DeviceKind::kCuda;
  choice.limits.kv_blocks = planned;
  choice.least_kv_blocks = least;
  return choice;
}

/// The environment of a rank on whose device others have taken this many bytes.
std::vector<std::string> with_taken(int64_t bytes) {
  return {cat("EMULATED_GPU_BYTES=", kDeviceBytes), cat("EMULATED_GPU_TAKEN=", bytes)};
}

enum class Start { kFirst, kAgain, kNotReproducible };

/// Starts ranks that find these facts, and returns what each of them reports.
Attempt<std::vector<ModelReady>> start_ranks(const ModelStart& choice, Facts facts,
                                             Start which = Start::kFirst) {
  WorkerGroupOptions options;
  options.world_size = kRanks;
  options.startup_timeout_s = kGuardSeconds;
  options.evidence_ms = options.explain_ms = kGuardMs;
  options.start.collective_timeout_ms = kGuardMs;
  options.start.has_run = which == Start::kAgain;
  options.start.reproducible = which != Start::kNotReproducible;
  options.start.device = choice.device;
  options.start.cuda_module = SHOAL_EMULATED_MODULE;
  options.start.work = encode(choice);
  options.work_fds = work_fds(choice);
  Result<TransportSetup> setup = find_rung("tcp")->prepare(kRanks);
  if (!setup.ok()) return Failure{setup.status(), Phase::kReserve};
  setup->environment = std::move(facts);
  Attempt<std::unique_ptr<WorkerGroup>> group = WorkerGroup::start(options, *setup);
  if (!group.ok()) return group.failure();
  std::vector<ModelReady> ready;
  for (const std::string& about : (*group)->ready())
    ready.push_back(decode<ModelReady>(about, "report of a rank").value());
  return ready;
}

/// The number of blocks that both ranks have taken; -1 if they have not taken the same.
int32_t blocks_of_both(const ModelStart& choice, int64_t taken0, int64_t taken1) {
  const auto ready = start_ranks(choice, {with_taken(taken0), with_taken(taken1)});
  EXPECT_TRUE(ready.ok()) << ready.status().to_string();
  if (!ready.ok() || ready->size() != kRanks) return -1;
  EXPECT_EQ(ready->front().kv_blocks, ready->back().kv_blocks) << taken0 << ", " << taken1;
  EXPECT_TRUE(check_alike(*ready).ok()) << check_alike(*ready).to_string();
  return ready->front().kv_blocks == ready->back().kv_blocks ? ready->front().kv_blocks : -1;
}

class RanksOnDevices : public testing::Test {
 protected:
  /// Finds out how much there is to share.
  void SetUp() override {
    const auto ready = start_ranks(choice_on_devices(kAll), {with_taken(0), with_taken(0)});
    ASSERT_TRUE(ready.ok()) << ready.status().to_string();
    all_ = ready->front().kv_blocks;
    ASSERT_LT(all_, kAll);
    const int64_t cache = std::min(ready->front().kv_bytes, ready->back().kv_bytes);
    half_ = cache / 2;
    ASSERT_GT(half_, 0);
  }

  static constexpr int32_t kAll = 1'000'000;  // blocks, more than any device has room for
  int32_t all_ = 0;                           // blocks that fit if nobody has taken anything
  int64_t half_ = 0;                          // bytes
};

TEST_F(RanksOnDevices, TakeOneCacheHoweverMuchMemoryEachHasFound) {
  const ModelStart choice = choice_on_devices(kAll);
  const int32_t first_is_poor = blocks_of_both(choice, half_, 0),
                second_is_poor = blocks_of_both(choice, 0, half_),
                both_are = blocks_of_both(choice, half_, half_);
  EXPECT_GT(both_are, 0);
  EXPECT_LT(std::max(first_is_poor, second_is_poor), all_);
  EXPECT_EQ(both_are, std::min(first_is_poor, second_is_poor));
}

TEST_F(RanksOnDevices, TakeWhatTheFrontHasChosenIfBothHaveMore) {
  const int32_t chosen = all_ / 4;
  ASSERT_GT(chosen, 0);
  EXPECT_EQ(blocks_of_both(choice_on_devices(chosen), half_, 0), chosen);
  EXPECT_EQ(blocks_of_both(choice_on_devices(chosen, chosen), 0, half_), chosen);
}

TEST_F(RanksOnDevices, EndTogetherIfOneHasLessThanTheFrontAllows) {
  const auto ready = start_ranks(choice_on_devices(all_, all_), {with_taken(0), with_taken(half_)});
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.status().code(), Code::kResourceExhausted);
  EXPECT_NE(ready.status().to_string().find(cat("GPU 1 has ")), std::string::npos)
      << ready.status().to_string();
}

TEST(RanksThatDiffer, AreRefusedIfTheirDriversAreNotTheSame) {
  const auto ready = start_ranks(choice_on_devices(8),
                                 {{"EMULATED_GPU_DRIVER=13000"}, {"EMULATED_GPU_DRIVER=13010"}});
  ASSERT_FALSE(ready.ok());
  const std::string why = ready.status().to_string();
  for (const char* said : {"ranks must use the same versions", "driver 13000", "driver 13010"})
    EXPECT_NE(why.find(said), std::string::npos) << why;
}

constexpr const char* kOther = "EMULATED_GPU_TENSOR_CORE=other";

TEST(RanksThatDiffer, AreRefusedIfTheirTensorCoresSumDifferently) {
  const auto ready = start_ranks(choice_on_devices(8), {{}, {kOther}});
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(ready.failure().fault, Fault::kPolicy);
  const std::string why = ready.status().to_string();
  EXPECT_NE(why.find("GPU 0 of rank 0 (sm90) and GPU 1 of rank 1 (unknown-9.0)"), std::string::npos)
      << why;
}

TEST(CheckSameTensorCores, NamesTheGpus) {
  std::vector<RankTensorCores> ranks(3);
  for (RankTensorCores& rank : ranks) rank.major = 9;
  EXPECT_TRUE(check_same_tensor_cores(ranks).ok());
  ranks[0].gpu = {0, "GPU-8f", "H100"};
  ranks[2].gpu = {1, "GPU-90", "H100"};
  ranks[2].hashes.bf16 = 1;
  const std::string why = check_same_tensor_cores(ranks).to_string();
  EXPECT_NE(why.find("the tensor cores of GPU 0 (GPU-8f, H100) of rank 0 (unknown-9.0) and GPU 1 "
                     "(GPU-90, H100) of rank 2 (unknown-9.0) gave different results"),
            std::string::npos)
      << why;
}

TEST(CheckKnownTensorCores, NamesEveryGpuOfAGroup) {
  std::vector<RankTensorCores> ranks(1);
  ranks[0] = {.gpu = {0, "GPU-8f", "H100"}, .major = 12, .minor = 1, .hashes = {1, 2}};
  EXPECT_TRUE(check_known_tensor_cores(ranks).ok()) << "it is alone";
  ranks.push_back({.gpu = {1, "GPU-90", "H100"}, .major = 12, .minor = 1, .hashes = {1, 2}});
  EXPECT_TRUE(check_same_tensor_cores(ranks).ok());
  const Status status = check_known_tensor_cores(ranks);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.fault(), Fault::kPolicy);
  EXPECT_NE(status.to_string().find("the tensor cores of GPU 0 (GPU-8f, H100) of rank 0 "
                                    "(unknown-12.1), GPU 1 (GPU-90, H100) of rank 1 "
                                    "(unknown-12.1) sum like those of no class"),
            std::string::npos)
      << status.to_string();
  for (RankTensorCores& rank : ranks) rank.hashes = kSm80Hashes;
  EXPECT_TRUE(check_known_tensor_cores(ranks).ok());
}

TEST(RanksThatAreAlike, AreRefusedIfTheyAreOfNoClass) {
  const auto ready = start_ranks(choice_on_devices(8), {{kOther}, {kOther}});
  ASSERT_FALSE(ready.ok());
  EXPECT_EQ(ready.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(ready.failure().fault, Fault::kPolicy);
}

TEST(RanksThatAreAlike, FormAGroupAndReportTheirClass) {
  for (const auto& [variable, which, arithmetic] :
       {std::tuple("EMULATED_GPU_TENSOR_CORE=sm80", Start::kFirst, "cuda-sm80-8"),
        std::tuple(kOther, Start::kNotReproducible, "cuda-unknown-9.0-8-off")}) {
    const auto ready = start_ranks(choice_on_devices(8), {{variable}, {variable}}, which);
    ASSERT_TRUE(ready.ok()) << ready.status().to_string();
    EXPECT_EQ(ready->front().arithmetic, arithmetic);
    EXPECT_EQ(ready->back().arithmetic, arithmetic);
  }
}

TEST(RanksThatAreStartedAgain, HaveTheTensorCoresOfBefore) {
  ModelStart choice = choice_on_devices(8);
  const auto before = start_ranks(choice, {});
  ASSERT_TRUE(before.ok()) << before.status().to_string();
  choice.tensor_cores = before->front().tensor_cores;
  EXPECT_TRUE(start_ranks(choice, {}, Start::kAgain).ok());
  const auto others = start_ranks(choice, {{kOther}, {kOther}}, Start::kAgain);
  ASSERT_FALSE(others.ok());
  EXPECT_EQ(others.status().code(), Code::kAborted);
  EXPECT_EQ(others.failure().fault, Fault::kPolicy);
  choice.tensor_cores = 0;
  EXPECT_EQ(start_ranks(choice, {}, Start::kAgain).failure().fault, Fault::kPolicy)
      << "0 is a hash like any other";
}

TEST(RanksThatAreStartedAgain, NeedTheRoomOfBefore) {
  ModelStart choice = choice_on_devices(8);
  const auto before = start_ranks(choice, {});
  ASSERT_TRUE(before.ok()) << before.status().to_string();
  choice.tensor_cores = before->front().tensor_cores;
  choice.least_device_bytes = INT64_MAX;
  const auto again = start_ranks(choice, {}, Start::kAgain);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(again.failure().fault, Fault::kShortage);
}

TEST(RanksThatAreStartedFirst, AreComparedWithNoneOfBefore) {
  ModelStart choice = choice_on_devices(8);
  choice.tensor_cores = 1;
  choice.least_device_bytes = INT64_MAX;
  const auto ready = start_ranks(choice, {});
  EXPECT_TRUE(ready.ok()) << ready.status().to_string();
}

TEST(GroupHash, UsesItsLastBitToo) {
  const auto is_even = [](uint64_t result) {
    RankTensorCores rank;
    rank.hashes.bf16 = result;
    return group_hash({rank}) % 2 == 0;
  };
  int even = 0;
  for (uint64_t result = 0; result < 64; ++result) even += is_even(result) ? 1 : 0;
  EXPECT_GT(even, 0);
  EXPECT_LT(even, 64);
}

// Each rank would find the best set of its processor by itself.
TEST(RanksOnCpus, ComputeWithTheKernelsThatTheFrontHasChosen) {
  for (const KernelTable* const kernels : available_kernels()) {
    ModelStart choice = choice_on_cpu();
    choice.kernels = kernels->name;
    const auto ready = start_ranks(choice, {});
    ASSERT_TRUE(ready.ok()) << ready.status().to_string();
    for (const ModelReady& rank : *ready) {
      EXPECT_EQ(rank.kernels, kernels->name);
      EXPECT_EQ(rank.kv_blocks, choice.limits.kv_blocks);
    }
    EXPECT_TRUE(check_alike(*ready).ok());
  }
}

TEST(CheckAlike, NamesTheFirstRankThatHasAnotherCache) {
  std::vector<ModelReady> ranks(3);
  for (ModelReady& rank : ranks) rank.kv_blocks = 9;
  ranks[0].kernels = "avx2";  // every set gives the same bits
  ranks[1].weight_bytes = 7;  // shards differ
  EXPECT_TRUE(check_alike(ranks).ok());
  EXPECT_TRUE(check_alike({}).ok());
  ranks[2].kv_blocks = 8;
  const Status status = check_alike(ranks);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(), "rank 2 has 8 blocks of KV cache, and rank 0 has 9");
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "worker") return shoal::worker_main(3);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
