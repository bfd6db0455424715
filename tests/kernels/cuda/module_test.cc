// The real module as any machine can see it, with or without a driver. What needs a device is in
// tests/gpu.
#include <cstdlib>
#include <cstring>
#include <gtest/gtest.h>
#include <string>

#include "runtime/device/cuda_module.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

constexpr int32_t kInvalidValue = 1;  // cudaErrorInvalidValue

class CudaModuleTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = load_cuda_module(SHOAL_CUDA_MODULE);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    module_ = *loaded;
  }
  const ShoalCudaModule* module_ = nullptr;
};

TEST_F(CudaModuleTest, SaysWhatItIsWithoutADriver) {
  EXPECT_EQ(module_->struct_bytes, sizeof(ShoalCudaModule));
  EXPECT_STREQ(module_->build_id, SHOAL_BUILD_ID);
  EXPECT_GE(module_->cuda_runtime_version, 11000);
  EXPECT_NE(std::strstr(module_->architectures, "-"), nullptr) << module_->architectures;
}

TEST_F(CudaModuleTest, EveryEntryIsThere) {
  const auto* entries = reinterpret_cast<void* const*>(&module_->error_text);
  const auto* end = reinterpret_cast<void* const*>(module_ + 1);
  for (int i = 0; entries + i < end; ++i) EXPECT_NE(entries[i], nullptr) << "entry " << i;
}

TEST_F(CudaModuleTest, FactsAreJsonOrAnErrorInCudasWords) {
  char text[8192] = "";
  const int32_t error = module_->facts(text, sizeof text);
  if (error == 0) {
    EXPECT_EQ(std::string(text).substr(0, 19), "{\"driver_version\": ");
    EXPECT_EQ(text[std::strlen(text) - 1], '}');
  } else {
    EXPECT_EQ(std::string(module_->error_text(error)).substr(0, 9), "cudaError");
    EXPECT_NE(std::strstr(module_->error_text(error), ": "), nullptr);
  }
}

TEST_F(CudaModuleTest, WithoutADeviceEverythingFailsPolitely) {
  char text[8192];
  if (module_->facts(text, sizeof text) == 0) GTEST_SKIP() << "there is a device here";
  void* memory = nullptr;
  void* stream = nullptr;
  int64_t wrong_bytes = 0;
  EXPECT_NE(module_->select(0), 0);
  EXPECT_NE(module_->load_kernels(), 0);
  EXPECT_NE(module_->allocate_raw(4096, &memory), 0);
  EXPECT_NE(module_->allocate(4096, &memory), 0);
  EXPECT_EQ(memory, nullptr);
  EXPECT_NE(module_->allocate_pinned(4096, &memory), 0);
  EXPECT_NE(module_->create_stream(&stream), 0);
  EXPECT_NE(module_->try_peer(0, 1, 4096, &wrong_bytes), 0);
  alignas(4096) static char page[4096];
  EXPECT_NE(module_->register_host(page, sizeof page, &memory), 0);
}

TEST_F(CudaModuleTest, WrongSumsAreRefusedBeforeAnyLaunch) {
  float value = 0;
  ShoalTreeSum sum{};
  sum.out = &value;
  sum.count = 1;
  EXPECT_EQ(module_->tree_sum(&sum, nullptr), kInvalidValue) << "no values";
  sum.values = 2;
  sum.planes[0] = sum.planes[1] = &value;
  EXPECT_EQ(module_->tree_sum(&sum, nullptr), kInvalidValue) << "two values remain";
  sum.merges[0] = 1;
  EXPECT_EQ(module_->tree_sum(&sum, nullptr), kInvalidValue) << "a merge of one value";
  sum.values = kShoalMostPlanes + 1;
  EXPECT_EQ(module_->tree_sum(&sum, nullptr), kInvalidValue) << "too many";
  sum.values = 9;
  std::memset(sum.merges, 0, sizeof sum.merges);
  sum.merges[8] = 8;
  EXPECT_EQ(module_->tree_sum(&sum, nullptr), kInvalidValue) << "deeper than the stack";
}

TEST_F(CudaModuleTest, APushFitsItsArea) {
  constexpr int64_t kArea = 2 << 20;
  for (const int world_size : {1, 2, 3, 8, 16}) {
    for (const int most : {1, 2, 4}) {
      const int64_t floats = module_->push_floats(kArea, world_size, most);
      EXPECT_GT(floats, 0);
      EXPECT_LE(floats * most * world_size * 2 * static_cast<int64_t>(sizeof(float)), kArea);
      EXPECT_GE(floats * most * world_size * 2 * static_cast<int64_t>(sizeof(float)),
                kArea * 9 / 10);
    }
  }
  EXPECT_EQ(module_->push_floats(100, 2, 1), 0);
  EXPECT_EQ(module_->push_floats(kArea, 2, 0), 0);

  float value = 0;
  uint32_t failure = 0;
  ShoalPushAllReduce push{};
  push.world_size = 1;
  push.contributions[0] = 1;
  push.areas[0] = &value;
  push.area_bytes = kArea;
  push.own = &value;
  push.failure = &failure;
  push.sum.values = 1;
  push.sum.out = &value;
  push.sum.count = module_->push_floats(kArea, 1, 1) + 1;
  EXPECT_EQ(module_->push_all_reduce(&push, nullptr), kInvalidValue) << "larger than the area";
  push.sum.count = 1;
  push.contributions[0] = 2;
  EXPECT_EQ(module_->push_all_reduce(&push, nullptr), kInvalidValue)
      << "contributions and values differ";
}

}  // namespace
}  // namespace shoal
