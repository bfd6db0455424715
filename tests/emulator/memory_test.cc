// The memory of the emulated devices, how processes share it, and faults that a test plans.
#include "tests/emulator/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/emulator/on_device.h"

namespace shoal::emulator {
namespace {

size_t free_now() {
  size_t left = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&left, &total), cudaSuccess);
  return left;
}

TEST(MemoryTest, IsAsMuchAsTheSettingsSay) {
  with_settings({{"BYTES", "1000000"}}, [] {
    void *large = nullptr, *more = nullptr;
    EXPECT_EQ(cudaMalloc(&large, 1'000'001), cudaErrorMemoryAllocation);
    ASSERT_EQ(cudaMalloc(&large, 600'000), cudaSuccess);
    EXPECT_EQ(free_now(), 400'000U);
    EXPECT_EQ(cudaMalloc(&more, 400'001), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaMalloc(&more, 400'000), cudaSuccess);
    EXPECT_EQ(free_now(), 0U);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(free_now(), 1'000'000U) << "each device has its own";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaFree(large), cudaSuccess);
    EXPECT_EQ(free_now(), 600'000U);
    EXPECT_EQ(cudaMalloc(&large, 600'000), cudaSuccess);
  });
}

TEST(MemoryTest, IsReleasedOnceByWhatAllocatedIt) {
  with_settings({}, [] {
    void *device = nullptr, *pinned = nullptr;
    std::vector<unsigned char> own(8192);
    ASSERT_EQ(cudaMalloc(&device, 64), cudaSuccess);
    ASSERT_EQ(cudaHostAlloc(&pinned, 64, cudaHostAllocMapped), cudaSuccess);
    ASSERT_EQ(cudaHostRegister(own.data(), own.size(), cudaHostRegisterMapped), cudaSuccess);
    EXPECT_EQ(cudaHostRegister(own.data(), 4096, cudaHostRegisterMapped),
              cudaErrorHostMemoryAlreadyRegistered);
    EXPECT_EQ(cudaFree(pinned), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
    EXPECT_EQ(cudaHostUnregister(device), cudaErrorHostMemoryNotRegistered);
    EXPECT_EQ(cudaFree(static_cast<char*>(device) + 4), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
    EXPECT_EQ(cudaFree(device), cudaSuccess);
    EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
    EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
    EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
  });
}

struct CopyWordArgs {
  uint32_t* to;
  const uint32_t* from;
};
void copy_word(CopyWordArgs args) {
  cuda::store_global(args.to, cuda::load_global(args.from));
}

TEST(MemoryTest, HoldsNanUntilSomebodyWrites) {
  const std::vector<uint32_t> nan(2, ~0U);
  with_settings({}, [&] {
    const OnDevice<uint32_t> fresh(2);
    EXPECT_EQ(fresh.values(), nan);
    EXPECT_EQ(run_block(&copy_word, 1, 0, {fresh.get() + 1, fresh.get()}), cudaErrorLaunchFailure)
        << "to read it is a fault";
  });
  with_settings({{"FRESH", "nan"}}, [&] {
    const OnDevice<uint32_t> fresh(2), to(std::vector<uint32_t>{3, 4});
    EXPECT_EQ(run_block(&copy_word, 1, 0, {to.get(), fresh.get()}), cudaSuccess);
    EXPECT_EQ(to.values(), (std::vector<uint32_t>{~0U, 4})) << "it has a former owner";
  });
}

TEST(MemoryTest, OfTheHostIsMappedIfItIsRegistered) {
  with_settings({}, [] {
    uint32_t words[2] = {77, 0};
    void* mapped = nullptr;
    EXPECT_EQ(cudaHostGetDevicePointer(&mapped, words, 0), cudaErrorInvalidValue);
    ASSERT_EQ(cudaHostRegister(words, sizeof words, cudaHostRegisterMapped), cudaSuccess);
    EXPECT_EQ(cudaHostGetDevicePointer(&mapped, words, 0), cudaSuccess);
    auto* device_words = static_cast<uint32_t*>(mapped);
    EXPECT_EQ(run_block(&copy_word, 1, 0, {device_words + 1, device_words}), cudaSuccess);
    EXPECT_EQ(words[1], 77U);
    ASSERT_EQ(cudaHostUnregister(words), cudaSuccess);
    EXPECT_EQ(run_block(&copy_word, 1, 0, {device_words + 1, device_words}), cudaErrorLaunchFailure)
        << "a lane must not remember what has gone";
  });
}

TEST(MemoryTest, IsSharedByProcesses) {
  with_settings({{"STREAMS", "at-once"}}, [] {
    const OnDevice<uint32_t> mine(std::vector<uint32_t>{1, 2, 3});
    cudaIpcMemHandle_t handle{};
    ASSERT_EQ(cudaIpcGetMemHandle(&handle, mine.get()), cudaSuccess);
    void* memory = nullptr;
    EXPECT_EQ(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
              cudaErrorInvalidResourceHandle)
        << "nobody imports what is its own";
    with_settings({}, [&] {
      void* theirs = nullptr;
      ASSERT_EQ(cudaIpcOpenMemHandle(&theirs, handle, cudaIpcMemLazyEnablePeerAccess), cudaSuccess);
      auto* words = static_cast<uint32_t*>(theirs);
      EXPECT_NE(words, mine.get());
      EXPECT_EQ(run_block(&copy_word, 1, 0, {words, words + 2}), cudaSuccess);
      cudaIpcMemHandle_t again{};
      EXPECT_EQ(cudaIpcGetMemHandle(&again, theirs), cudaErrorInvalidValue);
      EXPECT_EQ(cudaIpcCloseMemHandle(theirs), cudaSuccess);
      EXPECT_EQ(cudaIpcCloseMemHandle(theirs), cudaErrorInvalidValue);
    });
    EXPECT_EQ(mine.values(), (std::vector<uint32_t>{3, 2, 3}));
  });
}

TEST(PlannedFaultTest, AFunctionReturnsTheError) {
  with_settings({}, [] {
    void* memory = nullptr;
    set("FAIL", "cudaMalloc:2");
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaHostAlloc(&memory, 64, 0), cudaSuccess);
    set("FAIL", "cudaLaunchKernel:719");
    EXPECT_EQ(run_block(&copy_word, 1, 0, {nullptr, nullptr}), cudaErrorLaunchFailure);
    ::unsetenv("EMULATED_GPU_FAIL");
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaSuccess) << "the device itself has not failed";
  });
}

TEST(PlannedFaultTest, OnlyOneDeviceFails) {
  with_settings({{"FAIL", "cudaMalloc:2:1"}}, [] {
    for (const int device : {1, 0}) {
      void* memory = nullptr;
      EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
      EXPECT_EQ(cudaMalloc(&memory, 64), device == 1 ? cudaErrorMemoryAllocation : cudaSuccess);
    }
  });
}

TEST(PlannedFaultTest, ADeviceBreaksForTheProcessThatFindsTheFile) {
  const std::string path = testing::TempDir() + "/emulated_gpu_breaks";
  with_settings({{"FAIL", path}}, [&path] {
    const auto illegal_address = static_cast<cudaError_t>(700);
    void* memory = nullptr;
    EXPECT_EQ(cudaHostAlloc(&memory, 64, 0), cudaSuccess);
    std::ofstream(path) << "cudaHostAlloc:700:1\n";
    EXPECT_EQ(cudaHostAlloc(&memory, 64, 0), cudaSuccess) << "this is device 0";
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory, 64), cudaSuccess) << "not this function";
    EXPECT_EQ(cudaHostAlloc(&memory, 64, 0), illegal_address);
    EXPECT_EQ(cudaMalloc(&memory, 64), illegal_address) << "the error stays";
    EXPECT_FALSE(std::ifstream(path).is_open()) << "a new process finds the device well";
  });
}

/// Memory of two devices, of which the kernels of one write to the other.
struct TwoDevices {
  uint32_t* word[2] = {};
  TwoDevices() {
    for (int device : {1, 0}) {
      EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
      EXPECT_EQ(cudaMalloc(&word[device], 8), cudaSuccess);
      const uint32_t values[2] = {5, static_cast<uint32_t>(device)};
      EXPECT_EQ(cudaMemcpy(word[device], values, 8, cudaMemcpyDefault), cudaSuccess);
    }
  }
  /// Copies the second word of a device to the first one of the other.
  cudaError_t push_from(int device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    return cuda::launch(&copy_word, 1, 1, CopyWordArgs{word[1 - device], word[device] + 1},
                        nullptr);
  }
  uint32_t first(int device) {
    uint32_t value = 0;
    EXPECT_EQ(cudaMemcpy(&value, word[device], 4, cudaMemcpyDefault), cudaSuccess);
    return value;
  }
};

TEST(PlannedFaultTest, WritesBetweenTwoDevicesAreLost) {
  const auto pushed = [](const char* wrong, uint32_t to_0, uint32_t to_1) {
    with_settings({{"PEERS", "all"}, {"PEER_WRONG", wrong}}, [&] {
      TwoDevices both;
      EXPECT_EQ(both.push_from(0), cudaSuccess);
      EXPECT_EQ(both.push_from(1), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(both.first(0), to_0) << wrong;
      EXPECT_EQ(both.first(1), to_1) << wrong;
    });
  };
  pushed("2-1", 1, 0);
  pushed("0-1", 1, 5);
  pushed("1-0", 5, 0);
  pushed("1-*", 5, 0);
  pushed("*-1", 1, 5);
  pushed("*-*", 5, 5);
}

TEST(PlannedFaultTest, AKernelThatWritesToAPeerHangs) {
  with_settings({{"PEERS", "all"}, {"PEER_HANG", "0-1"}}, [] {
    TwoDevices both;
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(both.push_from(1), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    EXPECT_EQ(both.push_from(0), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, nullptr), cudaSuccess);
    // no deadline: no moment shows that a kernel never ends, so this look can only miss a fault
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  });
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(SettingsTest, FirstLaunchesAreCounted) {
  const std::string path = testing::TempDir() + "/emulated_gpu_launched";
  with_settings({{"LAUNCHED", path}}, [&path] {
    const auto other = +[](CopyWordArgs args) { cuda::store_global(args.to, 9U); };
    const OnDevice<uint32_t> words(std::vector<uint32_t>{1, 2});
    const CopyWordArgs args{words.get(), words.get() + 1};
    const auto lines = [&path] {
      const std::string text = text_of_file(path);
      return std::count(text.begin(), text.end(), '\n');
    };
    EXPECT_EQ(run_block(&copy_word, 1, 0, args), cudaSuccess);
    EXPECT_EQ(run_block(&copy_word, 1, 0, args), cudaSuccess);
    EXPECT_EQ(lines(), 1);
    EXPECT_EQ(run_block(other, 1, 0, args), cudaSuccess);
    EXPECT_EQ(lines(), 2);
  });
  std::remove(path.c_str());
}

TEST(SettingsTest, ADriverThatCompilesLetsTheLoaderWait) {
  const std::string path = testing::TempDir() + "/emulated_gpu_compiles";
  with_settings({{"COMPILES", path}}, [&path] {
    std::ofstream(path) << "";
    std::atomic<bool> over = false;
    std::thread compiler([&] {
      std::this_thread::yield();
      over = true;
      std::remove(path.c_str());
    });
    EXPECT_EQ(cuda::load_kernel(&copy_word), cudaSuccess);
    EXPECT_TRUE(over);
    compiler.join();
  });
}

TEST(SettingsTest, DevicesHaveTheirCapabilities) {
  with_settings({{"CAPABILITY", "8.0,9.0,12.1"}, {"DEVICES", "4"}, {"DRIVER", "12040"}}, [] {
    const std::vector<std::pair<int, int>> expected{{8, 0}, {9, 0}, {12, 1}, {12, 1}};
    for (int device = 0; device < 4; ++device) {
      cudaDeviceProp properties;
      ASSERT_EQ(cudaGetDeviceProperties(&properties, device), cudaSuccess);
      EXPECT_EQ(std::pair(properties.major, properties.minor),
                expected[static_cast<size_t>(device)]);
    }
    int count = 0, driver = 0;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    EXPECT_EQ(count, 4);
    EXPECT_EQ(cudaSetDevice(4), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaDriverGetVersion(&driver), cudaSuccess);
    EXPECT_EQ(driver, 12040);
  });
  with_settings({{"DEVICES", "0"}}, [] {
    int count = 1;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  });
}

TEST(SettingsTest, ADeviceKeepsWhatItIsWhateverItsNumber) {
  const std::string path = testing::TempDir() + "/numbers";
  std::ofstream(path) << "2,0\n";
  for (const std::string& numbers : {std::string("2,0"), path}) {
    with_settings({{"CAPABILITY", "8.0,9.0,12.1"}, {"NUMBERS", numbers}, {"BYTES", "1000"}}, [] {
      int count = 0;
      EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
      EXPECT_EQ(count, 2);
      cudaDeviceProp properties;
      char bus[32] = "";
      ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
      EXPECT_EQ(properties.major, 12);
      EXPECT_EQ(properties.uuid.bytes[15], 2);
      EXPECT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), cudaSuccess);
      EXPECT_STREQ(bus, "0000:12:00.0");
      ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
      EXPECT_EQ(properties.uuid.bytes[15], 0);
      EXPECT_EQ(cudaGetDeviceProperties(&properties, 2), cudaErrorInvalidDevice);
      EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, 600), cudaSuccess) << "of the first, as nobody has selected";
      ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
      EXPECT_EQ(free_now(), 400U);
      ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
      EXPECT_EQ(free_now(), 1000U);
    });
  }
  with_settings({{"NUMBERS", "none"}}, [] {
    int count = 1;
    EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
  });
}

TEST(SettingsTest, AKernelRunsOnTheTensorCoreOfItsDevice) {
  with_settings({{"CAPABILITY", "8.0,9.0"}}, [] {
    for (const int device : {0, 1, 2}) {
      ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
      const OnDevice<uint32_t> major(1);
      const auto kernel = +[](CopyWordArgs args) {
        cuda::store_global(args.to, static_cast<uint32_t>(facts_of_launch().capability.major));
      };
      EXPECT_EQ(run_block(kernel, 1, 0, CopyWordArgs{major.get(), nullptr}), cudaSuccess);
      EXPECT_EQ(major.values()[0], device == 0 ? 8U : 9U);
    }
  });
}

TEST(SettingsTest, WhatHasNoMeaningEndsTheProcess) {
  for (const auto& variable : Variables{{"STREAMS", "later"},
                                        {"FRESH", "zero"},
                                        {"COPIES", "never"},
                                        {"ORDER", "backward"},
                                        {"FAIL", "cudaMalloc"},
                                        {"PEER_WRONG", "1"},
                                        {"PEER_HANG", "a-b"},
                                        {"SKIP_BARRIER", "product.cuh"},
                                        {"DEVICES", "many"},
                                        {"NUMBERS", "1,1"},
                                        {"NUMBERS", "8"},
                                        {"NUMBERS", "first"},
                                        {"CAPABILITY", "new"}}) {
    const auto use = [&] {
      set(variable.first, variable.second);
      int count = 0;
      cudaGetDeviceCount(&count);
    };
    EXPECT_EXIT(use(), testing::ExitedWithCode(70), "has no meaning") << variable.first;
  }
}

}  // namespace
}  // namespace shoal::emulator
