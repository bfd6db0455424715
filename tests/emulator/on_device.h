#pragma once
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <gtest/gtest.h>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/machine.cuh"
#include "tests/in_child.h"

/// What the tests of the emulated device have in common. Each part of a test runs in a child
/// process, because a device that has failed stays failed, and because a stream's thread does not
/// go along into a child. So the process of the tests itself must not use the device.
namespace shoal::emulator {

/// Without the prefix EMULATED_GPU_.
using Variables = std::vector<std::pair<std::string, std::string>>;

inline void set(const std::string& name, const std::string& value) {
  ::setenv(("EMULATED_GPU_" + name).c_str(), value.c_str(), 1);
}

/// Runs the body, which may use EXPECT_*, in a child process with these settings.
inline void with_settings(const Variables& variables, const std::function<void()>& body) {
  EXPECT_EQ(in_child([&] {
              for (const auto& [name, value] : variables) set(name, value);
              body();
              return std::string(testing::Test::HasFailure() ? "it failed as printed above" : "");
            }),
            "");
}

/// Memory of the device that the thread has selected.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&memory_, count * sizeof(T)), cudaSuccess);
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    EXPECT_EQ(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return memory_; }
  /// After all that streams have been asked to do.
  std::vector<T> values() const {
    std::vector<T> all(count_);
    EXPECT_EQ(cudaMemcpy(all.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return all;
  }

 private:
  T* memory_ = nullptr;
  size_t count_;
};

/// One block on the default stream, to its end. early: started with launch_early.
template <typename Args>
cudaError_t run_block(void (*kernel)(Args), int threads, size_t memory, const Args& args,
                      bool early = false) {
  cudaError_t error = cuda::load_kernel(kernel, memory);
  if (error == cudaSuccess)
    error = early ? cuda::launch_early(kernel, cuda::Grid{}, threads, memory, args, nullptr)
                  : cuda::launch(kernel, cuda::Grid{}, threads, memory, args, nullptr);
  return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

/// Forward, reverse and 20 random orders.
inline std::vector<std::string> orders() {
  std::vector<std::string> all{"forward", "reverse"};
  for (int seed = 1; seed <= 20; ++seed) all.push_back(std::to_string(seed));
  return all;
}

}  // namespace shoal::emulator
