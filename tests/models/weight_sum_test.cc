// The checksum of a rank's weights: the same for equal weights, another one for any byte that is
// not.
#include "models/weight_sum.h"

#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "models/device_weights.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

/// The set that every processor has.
const KernelTable& reference() {
  return *available_kernels().back();
}

uint64_t sum_of(const std::vector<std::string>& parts, int threads = 2,
                const KernelTable& kernels = reference()) {
  ThreadPool pool(threads);
  WeightSum sum(pool, kernels);
  for (const std::string& part : parts) sum.add(part.data(), part.size());
  return sum.value();
}

TEST(WeightSum, EveryByteCountsAndNoThreadDoes) {
  const std::string bytes(5'000'001, 'a');
  const uint64_t sum = sum_of({bytes});
  for (const int threads : {1, 3, 4}) EXPECT_EQ(sum_of({bytes}, threads), sum);
  for (const size_t at : {size_t{0}, size_t{1} << 20, (size_t{1} << 20) - 1, bytes.size() - 1}) {
    std::string other = bytes;
    other[at] = 'b';
    EXPECT_NE(sum_of({other}), sum) << at;
  }
  EXPECT_NE(sum_of({bytes.substr(1)}), sum);
}

TEST(WeightSum, IsTheSameByEveryKernelSet) {
  const std::vector<std::string> parts = {std::string(3'000'000, 'a'), "b", std::string(777, 'c')};
  const uint64_t sum = sum_of(parts);
  for (const KernelTable* const kernels : available_kernels())
    EXPECT_EQ(sum_of(parts, 3, *kernels), sum) << kernels->name;
}

TEST(WeightSum, PartsDoNotRunIntoEachOther) {
  EXPECT_NE(sum_of({"ab", "c"}), sum_of({"a", "bc"}));
  EXPECT_NE(sum_of({"a", "b"}), sum_of({"b", "a"}));
  EXPECT_NE(sum_of({"a", ""}), sum_of({"", "a"}));
  EXPECT_NE(sum_of({}), sum_of({""}));
}

Device& emulated_device() {
  static const std::shared_ptr<Device> device =
      Device::open(*load_cuda_module(SHOAL_EMULATED_MODULE).value(), 0).value();
  return *device;
}

/// The sums of all ranks that load the model.
std::vector<uint64_t> loaded(const std::string& model, int ranks, int threads, DeviceKind where) {
  const ModelConfig config = load_model_config(model).value();
  const Checkpoint checkpoint = Checkpoint::open(model).value();
  const Dtype dtype = resolve_dtype(checkpoint, std::nullopt).value();
  ThreadPool pool(threads);
  std::vector<uint64_t> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const ShardPlan plan = make_shard_plan(config, {rank, ranks}, where).value();
    sums.push_back(
        where == DeviceKind::kCuda
            ? load_device_weights(checkpoint, config, plan, dtype, emulated_device(), pool,
                                  reference(), {})
                  .value()
                  .sum
            : load_weights(checkpoint, config, plan, dtype, pool, reference(), {}).value().sum);
  }
  return sums;
}

/// The matrices, vectors and the table of a rank, as far as it has them.
std::vector<Device::Memory> parts_of(const DeviceWeights& weights) {
  std::vector<Device::Memory> parts = {weights.embedding, weights.final_norm.values,
                                       weights.lm_head.weights};
  for (const auto& layer : weights.layers) {
    for (const DeviceMatrix* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      parts.push_back(matrix->weights);
    for (const DeviceVector* vector :
         {&layer.input_norm, &layer.post_attention_norm, &layer.qkv_bias, &layer.q_norm,
          &layer.k_norm, &layer.o_bias, &layer.gate_up_bias, &layer.down_bias})
      parts.push_back(vector->values);
  }
  std::erase(parts, nullptr);
  return parts;
}

void flip(const std::string& path, uint64_t at) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  char byte = 0;
  ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
}

class WeightsOfModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::copy(cat(SHOAL_TEST_DATA "/oracle/", GetParam()), model_);
  }
  void TearDown() override { std::filesystem::remove_all(model_); }

  void every_byte_counts(DeviceKind where);

  const std::string model_ = cat(testing::TempDir(), "weight-sum-", ::getpid());
};

void WeightsOfModel::every_byte_counts(DeviceKind where) {
  constexpr int kRanks = 2;
  const std::vector<uint64_t> whole = loaded(model_, kRanks, 1, where);
  EXPECT_EQ(loaded(model_, kRanks, 3, where), whole);
  EXPECT_NE(whole[0], whole[1]) << "each rank has weights of its own";
  const CheckpointLayout layout = Checkpoint::open(model_).value().layout();
  for (const CheckpointLayout::Tensor& tensor : layout.tensors) {
    const std::string& path = layout.files[tensor.file].path;
    for (const uint64_t at :
         {tensor.entry.begin, (tensor.entry.begin + tensor.entry.end) / 2, tensor.entry.end - 1}) {
      flip(path, at);
      // By one thread: several wait for each other at every matrix where others compute too.
      EXPECT_NE(loaded(model_, kRanks, 1, where), whole) << tensor.entry.name << " at " << at;
      flip(path, at);
    }
  }
  EXPECT_EQ(loaded(model_, kRanks, 2, where), whole);
}

TEST_P(WeightsOfModel, AnotherByteOfAnyTensorIsAnotherSum) {
  every_byte_counts(DeviceKind::kCpu);
}

TEST_P(WeightsOfModel, AlsoOfWhatIsCopiedToADevice) {
  every_byte_counts(DeviceKind::kCuda);
}

TEST_P(WeightsOfModel, AreOneAllocationOfADevice) {
  const ModelConfig config = load_model_config(model_).value();
  const Checkpoint checkpoint = Checkpoint::open(model_).value();
  const Dtype dtype = resolve_dtype(checkpoint, std::nullopt).value();
  ThreadPool pool(1);
  for (int rank = 0; rank < 3; ++rank) {
    const ShardPlan plan = make_shard_plan(config, {rank, 3}, DeviceKind::kCuda).value();
    const uint64_t before = emulated_device().memory_info().value().free_bytes;
    const DeviceWeights weights = load_device_weights(checkpoint, config, plan, dtype,
                                                      emulated_device(), pool, reference(), {})
                                      .value();
    const int64_t counted = device_weight_bytes(config, plan, dtype).value();
    EXPECT_EQ(weights.bytes, counted);
    EXPECT_EQ(before - emulated_device().memory_info().value().free_bytes,
              static_cast<uint64_t>(counted))
        << "beside the weights nothing was taken";
    const auto* const begin = static_cast<const std::byte*>(weights.embedding.get());
    for (const Device::Memory& part : parts_of(weights)) {
      const auto* const at = static_cast<const std::byte*>(part.get());
      EXPECT_TRUE(at >= begin && at < begin + counted);
      EXPECT_FALSE(part.owner_before(weights.embedding) || weights.embedding.owner_before(part))
          << "another allocation";
    }
  }
}

// The matrices of the models above are so narrow that each panel has one strip.
TEST(WeightSum, EveryStripOfAPanelCounts) {
  const std::string model = cat(testing::TempDir(), "weight-sum-demo-", ::getpid());
  std::filesystem::copy(SHOAL_TEST_DATA "/../../models/demo", model);
  const std::vector<uint64_t> whole = loaded(model, 1, 2, DeviceKind::kCpu);
  const CheckpointLayout layout = Checkpoint::open(model).value().layout();
  int flipped = 0;
  for (const CheckpointLayout::Tensor& tensor : layout.tensors) {
    if (tensor.entry.name != "model.layers.3.mlp.down_proj.weight") continue;
    constexpr uint64_t kColumns = 768;  // bfloat16, three strips
    ASSERT_EQ(tensor.entry.end - tensor.entry.begin, 256 * kColumns * 2);
    for (const auto& [row, column] : {std::pair<uint64_t, uint64_t>(5, 0), {5, 511}, {255, 767}}) {
      const uint64_t at = tensor.entry.begin + (row * kColumns + column) * 2;
      flip(layout.files[tensor.file].path, at);
      EXPECT_NE(loaded(model, 1, 2, DeviceKind::kCpu), whole) << row << " " << column;
      flip(layout.files[tensor.file].path, at);
      ++flipped;
    }
  }
  EXPECT_EQ(flipped, 3);
  EXPECT_EQ(loaded(model, 1, 3, DeviceKind::kCpu), whole);
  std::filesystem::remove_all(model);
}

INSTANTIATE_TEST_SUITE_P(All, WeightsOfModel,
                         testing::Values("llama-nine-heads", "llama3-gqa-tied-sharded",
                                         "qwen2-bias-uneven", "qwen3-norm-yarn"),
                         [](const auto& model) {
                           std::string name = model.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace shoal
