// Weights and the inputs of a step travel to a device through pinned buffers. A device that reads
// them as late as it may must compute the same as one that reads them at once. In pinned memory it
// also shows how far it is.
#include <cstdlib>
#include <gtest/gtest.h>
#include <numeric>
#include <string>
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

/// Loads the model and returns the bytes of the prompt's last row of logits, or an error. The steps
/// have these signs.
Result<std::string> last_logits(const std::string& model, const StepSigns& signs) {
  SHOAL_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model));
  SHOAL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(model));
  SHOAL_ASSIGN_OR_RETURN(const ShardPlan plan, make_shard_plan(config, {0, 1}, DeviceKind::kCuda));
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* const module,
                         load_cuda_module(SHOAL_EMULATED_MODULE));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, Device::open(*module, 0));
  ThreadPool pool(1);
  SHOAL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Layers> layers,
      CudaLayers::load({config, plan, device, pool, *available_kernels().back(), kGuardMs, {}},
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
    const Result<std::string> logits = last_logits(SHOAL_TEST_DATA "/oracle/llama-nine-heads", {});
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
    const auto logits = last_logits(SHOAL_TEST_DATA "/oracle/llama-nine-heads", signs);
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

}  // namespace
}  // namespace shoal
