// The loader and the device, tested with the emulated module.
#include "runtime/device/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "runtime/device/module_loader.h"
#include "tests/guard.h"

namespace shoal {
namespace {

const ShoalCudaModule& module() {
  const Result<const ShoalCudaModule*> loaded = load_cuda_module(SHOAL_EMULATED_MODULE);
  if (!loaded.ok()) ADD_FAILURE() << loaded.status().to_string();
  return **loaded;
}

TEST(ModuleLoaderTest, LooksBesideTheProgramAndNowhereElse) {
  // There is no module next to this test, and the working directory must not be searched.
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path(SHOAL_EMULATED_MODULE).parent_path());
  std::filesystem::copy_file(SHOAL_EMULATED_MODULE, "libshoal_cuda.so",
                             std::filesystem::copy_options::overwrite_existing);
  const Result<std::string> found = find_cuda_module("");
  std::filesystem::remove("libshoal_cuda.so");
  std::filesystem::current_path(here);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kNotFound);
  EXPECT_EQ(find_cuda_module("libemulated_cuda_module.so").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(find_cuda_module("./no-such-file.so").status().code(), Code::kNotFound);
  const Result<std::string> given = find_cuda_module(SHOAL_EMULATED_MODULE);
  ASSERT_TRUE(given.ok()) << given.status().to_string();
  EXPECT_EQ(*given, SHOAL_EMULATED_MODULE);
}

TEST(ModuleLoaderTest, FindsTheModuleOfAnInstallation) {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path folder = own / "../lib/shoal";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(SHOAL_EMULATED_MODULE, folder / "libshoal_cuda.so",
                             std::filesystem::copy_options::overwrite_existing);
  const Result<std::string> found = find_cuda_module("");
  std::filesystem::remove_all(own / "../lib");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(*found, own.string() + "/../lib/shoal/libshoal_cuda.so");
}

TEST(ModuleLoaderTest, RefusesWithTheLoadersOwnWords) {
  const Status text = load_cuda_module(SHOAL_SOURCE_DIR "/README.md").status();
  EXPECT_EQ(text.code(), Code::kFailedPrecondition);
  EXPECT_NE(text.to_string().find("invalid ELF header"), std::string::npos) << text.to_string();
  const Status other = load_cuda_module("libm.so.6").status();
  EXPECT_NE(other.to_string().find("undefined symbol: shoal_cuda_module"), std::string::npos)
      << other.to_string();
}

TEST(DeviceTest, MovesAndSums) {
  const Result<std::shared_ptr<Device>> device = Device::open(module(), 0);
  ASSERT_TRUE(device.ok()) << device.status().to_string();
  const Device::Memory memory = *(*device)->allocate(64);
  const Device::Stream stream = *(*device)->make_stream();
  const Device::Event event = *(*device)->make_event();
  const float values[] = {1, 2, 3, 4, 10, 20, 30, 40};
  const Device::Memory pinned = *(*device)->allocate_pinned(sizeof values);
  std::memcpy(pinned.get(), values, sizeof values);
  ASSERT_TRUE((*device)->copy(memory.get(), pinned.get(), sizeof values, stream.get()).ok());
  const auto* floats = static_cast<const float*>(memory.get());
  const Device::Memory out = *(*device)->allocate(16);
  ShoalTreeSum sum{};
  sum.values = 2;
  sum.merges[1] = 1;
  sum.planes[0] = floats;
  sum.planes[1] = floats + 4;
  sum.out = static_cast<float*>(out.get());
  sum.count = 4;
  ASSERT_TRUE((*device)->tree_sum(sum, stream.get()).ok());
  ASSERT_TRUE((*device)->record(event.get(), stream.get()).ok());
  ASSERT_TRUE((*device)->wait(event.get(), Deadline::after_ms(kGuardMs), {}).ok());
  EXPECT_EQ(static_cast<float*>(out.get())[3], 44);
}

/// A kernel is loaded when it is first launched. So a step of one token must launch the kernel that
/// a step of any other size launches, whatever is aligned in it.
TEST(DeviceTest, SumsOfAnyAlignmentAreOneKernel) {
  const std::filesystem::path launched =
      std::filesystem::path(testing::TempDir()) / "emulated_gpu_launched_by_sums";
  std::filesystem::remove(launched);
  const std::shared_ptr<Device> device = *Device::open(module(), 0);
  const Device::Memory memory = *device->allocate(16 * sizeof(float));
  const Device::Stream stream = *device->make_stream();
  const Device::Event event = *device->make_event();
  auto* const floats = static_cast<float*>(memory.get());
  ::setenv("EMULATED_GPU_LAUNCHED", launched.c_str(), 1);
  for (const int from : {0, 1}) {
    for (const int64_t count : {4, 3}) {
      ShoalTreeSum sum{};
      sum.values = 1;
      sum.planes[0] = floats + from;
      sum.out = floats + 8;
      sum.count = count;
      EXPECT_TRUE(device->tree_sum(sum, stream.get()).ok());
    }
  }
  EXPECT_TRUE(device->record(event.get(), stream.get()).ok());
  EXPECT_TRUE(device->wait(event.get(), Deadline::infinite(), {}).ok());
  ::unsetenv("EMULATED_GPU_LAUNCHED");
  std::ifstream file(launched);
  const std::string lines(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  std::filesystem::remove(launched);
}

TEST(DeviceTest, OnlyAPromiseOfZerosZeroesMemory) {
  const std::shared_ptr<Device> device = *Device::open(module(), 0);
  const Device::Memory zeros = *device->allocate(16), anything = *device->allocate_raw(16);
  // The host can look at an emulated device's memory, where new memory is NaN.
  const std::vector<unsigned char> expected[] = {std::vector<unsigned char>(16, 0),
                                                 std::vector<unsigned char>(16, 0xff)};
  EXPECT_EQ(std::memcmp(zeros.get(), expected[0].data(), 16), 0);
  EXPECT_EQ(std::memcmp(anything.get(), expected[1].data(), 16), 0);
}

TEST(DeviceTest, ErrorsCarryTheModulesWords) {
  const Status status = Device::open(module(), 99).status();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.to_string().find("GPU 99, select: cudaErrorInvalidDevice"), std::string::npos)
      << status.to_string();
  const std::shared_ptr<Device> device = *Device::open(module(), 1);
  ::setenv("EMULATED_GPU_FAIL", "cudaMalloc:2", 1);
  const Status memory = device->allocate(64).status();
  ::unsetenv("EMULATED_GPU_FAIL");
  EXPECT_EQ(memory.code(), Code::kResourceExhausted) << memory.to_string();
}

}  // namespace
}  // namespace shoal
