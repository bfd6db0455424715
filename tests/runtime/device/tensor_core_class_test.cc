#include "runtime/device/tensor_core_class.h"

#include <cstdlib>
#include <gtest/gtest.h>

#include "runtime/device/class_hashes.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

/// What device `index` of the emulated machine gives.
TensorCoreHashes hashes_of(int index) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(SHOAL_EMULATED_MODULE);
  if (!module.ok()) {
    ADD_FAILURE() << module.status().to_string();
    return {};
  }
  const Result<std::shared_ptr<Device>> device = Device::open(**module, index);
  if (!device.ok()) {
    ADD_FAILURE() << device.status().to_string();
    return {};
  }
  const Result<TensorCoreHashes> hashes = hash_tensor_cores(**device);
  EXPECT_TRUE(hashes.ok()) << hashes.status().to_string();
  return hashes.ok() ? *hashes : TensorCoreHashes{};
}

TEST(TensorCoreClassTest, ResultsDecideAndNotTheCapability) {
  ::setenv("EMULATED_GPU_CAPABILITY", "8.6,9.0,12.0,12.0,9.0", 1);
  ::setenv("EMULATED_GPU_TENSOR_CORE", "own,own,own,sm80,other", 1);
  EXPECT_EQ(class_of(hashes_of(0)), TensorCoreClass::kSm80);
  EXPECT_EQ(class_of(hashes_of(1)), TensorCoreClass::kSm90);
  EXPECT_EQ(class_of(hashes_of(2)), TensorCoreClass::kSm90);
  EXPECT_EQ(class_of(hashes_of(3)), TensorCoreClass::kSm80);
  EXPECT_EQ(class_of(hashes_of(4)), TensorCoreClass::kUnknown);
}

TEST(TensorCoreClassTest, BothTypesMustBeThoseOfAClass) {
  EXPECT_EQ(class_of(kSm80Hashes), TensorCoreClass::kSm80);
  EXPECT_EQ(class_of({kSm80Hashes.bf16, kSm90Hashes.tf32}), TensorCoreClass::kUnknown);
  EXPECT_EQ(class_of({}), TensorCoreClass::kUnknown);
}

}  // namespace
}  // namespace shoal
