#include "runtime/device/tensor_core_class.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/device/class_hashes.h"
#include "runtime/device/module_loader.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

Result<TensorCoreHashes> try_hashes_of(int index) {
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* const module,
                         load_cuda_module(SHOAL_EMULATED_MODULE));
  SHOAL_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, Device::open(*module, index));
  return hash_tensor_cores(*device);
}

/// What device `index` of the emulated machine gives.
TensorCoreHashes hashes_of(int index) {
  const Result<TensorCoreHashes> hashes = try_hashes_of(index);
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

TEST(TensorCoreClassTest, ADeviceThatHangsIsNamedSoon) {
  const std::string path = cat(testing::TempDir(), "/emulated_gpu_hangs_", ::getpid());
  std::ofstream(path) << 1;
  ::setenv("EMULATED_GPU_HANG", path.c_str(), 1);
  std::atomic<bool> over = false;
  const MovedClock clock;
  std::thread time([&] {
    EXPECT_TRUE(eventually([&] {
      MovedClock::advance(1);
      return over.load();
    })) << "nothing but the device itself ends the wait";
    std::ofstream(path) << -1;
  });
  const Status status = try_hashes_of(1).status();
  over = true;
  time.join();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  EXPECT_EQ(status.fault(), Fault::kSilence);
  EXPECT_NE(status.to_string().find("GPU 1 has not finished in time"), std::string::npos)
      << status.to_string();
  // This frees memory, and so waits until the device has done what it was given before, too.
  EXPECT_EQ(class_of(hashes_of(1)), TensorCoreClass::kSm90);
  ::unsetenv("EMULATED_GPU_HANG");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace shoal
