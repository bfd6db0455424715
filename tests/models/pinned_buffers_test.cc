// Weights and the inputs of a step travel to a device through pinned buffers. A device that reads
// them as late as it may must compute the same as one that reads them at once. In pinned memory it
// also shows how far it is.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <unistd.h>
#include <vector>

#include "models/cuda_layers.h"
#include "models/decoder.h"
#include "models/weights.h"
#include "runtime/base/cat.h"
#include "runtime/base/kv_block.h"
#include "runtime/comm/device/host_collective.h"
#include "runtime/comm/device/staged_communicator.h"
#include "runtime/device/module_loader.h"
#include "tests/guard.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

constexpr int kRows = 8, kSteps = 3;

/// Step number `number` of a prompt. Only the last one asks for logits, so that nobody needs the
/// results of the others.
DecoderBatch step(int number, const std::vector<int32_t>& block_table) {
  DecoderBatch batch;
  for (int row = 0; row < kRows; ++row) {
    const int position = number * kRows + row;
    batch.token_ids.push_back(position * 37 % 800 + 4);
    batch.positions.push_back(position);
  }
  batch.sequences = {{block_table.data(), number * kRows, 0, kRows}};
  if (number == kSteps - 1) {
    batch.logit_rows = {kRows - 1};
    batch.whole = {1};
  }
  return batch;
}

constexpr const char* kModel = SHOAL_TEST_DATA "/oracle/llama-nine-heads";
constexpr int kUsualLead = CudaLayers::kLayersAhead;  // more layers than the model has

/// Loads the model and returns the bytes of the prompt's last row of logits, or an error. The steps
/// have these signs.
Result<std::string> last_logits(const StepSigns& signs, int layers_ahead = kUsualLead) {
  const std::string model = kModel;
  SHOAL_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model));
  SHOAL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(model));
  SHOAL_ASSIGN_OR_RETURN(const ShardPlan plan, make_shard_plan(config, {0, 1}, DeviceKind::kCuda));
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* const module,
                         load_cuda_module(SHOAL_EMULATED_MODULE));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, Device::open(*module, 0));
  ThreadPool pool(1);
  SHOAL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Layers> layers,
      CudaLayers::load(
          {config, plan, device, pool, *available_kernels().back(), kGuardMs, {}, layers_ahead},
          checkpoint, Dtype::kBf16, {}));
  SHOAL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Communicator> alone,
      make_staged_communicator(device, make_single_collective(device), kGuardMs, {}));
  constexpr int kBlocks = kRows * kSteps / kBlockTokens + 1;
  SHOAL_RETURN_IF_ERROR(layers->take_memory({kRows, 1, kBlocks * kBlockTokens, 1}, *alone));
  SHOAL_RETURN_IF_ERROR(layers->take_kv_cache(kBlocks));
  layers->set_signs(signs);
  std::vector<int32_t> block_table(kBlocks);
  std::iota(block_table.begin(), block_table.end(), 0);
  std::string logits(static_cast<size_t>(config.vocab_size) * sizeof(float), '\0');
  ArgmaxResult best{};
  for (int number = 0; number < kSteps; ++number) {
    const DecoderBatch batch = step(number, block_table);
    SHOAL_RETURN_IF_ERROR(forward(*layers, config.num_hidden_layers, batch,
                                  {reinterpret_cast<float*>(logits.data()), &best}));
  }
  return logits;
}

std::string computed(const char* streams) {
  return in_child([streams] {
    ::setenv("EMULATED_GPU_STREAMS", streams, 1);
    const Result<std::string> logits = last_logits({});
    return logits.ok() ? *logits : logits.status().to_string();
  });
}

TEST(PinnedBuffers, AreUsedAgainOnlyAfterTheDeviceHasReadThem) {
  const std::string at_once = computed("at-once");
  ASSERT_GT(at_once.size(), 800 * sizeof(float)) << at_once;
  EXPECT_TRUE(computed("when-waited-for") == at_once);
  EXPECT_TRUE(computed("threads") == at_once);
}

/// What the steps of the model tell while the device does everything where it is enqueued.
std::string told_at_once() {
  return in_child([] {
    ::setenv("EMULATED_GPU_STREAMS", "at-once", 1);
    std::string told;
    const StepSigns signs{.moved =
                              [&] {
                                told += "moved; ";
                                return Status();
                              },
                          .waits =
                              [&](const std::string&, uint64_t mark, bool sums) {
                                told += cat(mark, sums ? " sums" : "", ", ");
                                return Status();
                              }};
    const auto logits = last_logits(signs);
    return logits.ok() ? told : logits.status().to_string();
  });
}

// A call that enqueues may wait by itself, so the first one is announced. The model has three
// layers.
TEST(PinnedBuffers, AStepSaysThatItWaitsBeforeItEnqueuesAndHowFarTheDeviceIs) {
  std::string expected;
  for (int number = 0; number < kSteps; ++number) expected += "0, 2, 4, 6, 8, 10, 12, moved; ";
  EXPECT_EQ(told_at_once(), expected);
}

/// Runs the steps on a device that hangs at the first kernel, until the host has said three times
/// that it waits. Returns how many kernels it had launched then. If the test fails, it returns what
/// was wrong: progress was reported before that, or not exactly once after each step.
std::string launched_while_it_hangs(int layers_ahead) {
  return in_child([layers_ahead] {
    constexpr int kLooks = 3;
    const std::string path = cat(testing::TempDir(), "hangs-", ::getpid());
    ::setenv("EMULATED_GPU_STREAMS", "threads", 1);
    ::setenv("EMULATED_GPU_HANG", path.c_str(), 1);
    const auto launches = [] { return (*load_cuda_module(SHOAL_EMULATED_MODULE))->launches(); };
    int looks = 0, moved = 0;
    uint64_t farthest = 0;  // of the looks while it hangs
    int64_t launched = 0;
    const StepSigns signs{.moved =
                              [&] {
                                if (++moved == 1 && looks < kLooks) farthest = ~uint64_t{0};
                                return Status();
                              },
                          .waits =
                              [&](const std::string&, uint64_t mark, bool) {
                                if (++looks == 1) {  // before anything is enqueued
                                  launched = -launches();
                                  std::ofstream(path) << 0;
                                }
                                if (looks <= kLooks) farthest = std::max(farthest, mark);
                                if (looks == kLooks) {
                                  launched += launches();
                                  std::ofstream(path) << -1;
                                }
                                return Status();
                              }};
    const auto logits = last_logits(signs, layers_ahead);
    ::unlink(path.c_str());
    if (!logits.ok()) return logits.status().to_string();
    if (farthest > 0 || moved != kSteps)
      return cat("mark ", farthest, ", and ", moved, " steps have moved");
    return std::to_string(launched);
  });
}

// What the host has enqueued is no progress, however far ahead it is: only what the device writes.
TEST(PinnedBuffers, AHostThatIsFarAheadTellsOfNoProgressWhileItsDeviceHangs) {
  const std::string near = launched_while_it_hangs(1), far = launched_while_it_hangs(kUsualLead);
  ASSERT_EQ(near.find_first_not_of("0123456789"), std::string::npos) << near;
  ASSERT_EQ(far.find_first_not_of("0123456789"), std::string::npos) << far;
  // Two kernels come before the first layer, and every layer has the same number of kernels. With a
  // lead of one layer, the host waits in the third layer until the device has come to the second.
  constexpr int kBefore = 2;
  EXPECT_EQ((std::stoi(near) - kBefore) * 3, (std::stoi(far) - kBefore) * 2) << near << ", " << far;
  EXPECT_GT(std::stoi(near), kBefore);
}

}  // namespace
}  // namespace shoal
