#pragma once
// Replaces kernels/cuda/machine.cuh with a FAKE machine, whose kernels run in threads of the host.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cuda_runtime.h>
#include <list>
#include <thread>
#include <vector>

namespace shoal::cuda {

// These are small, because each CUDA thread is a host thread. A push kernel needs at least one
// thread per rank.
inline constexpr int kSumThreads = 4;
inline constexpr int kSumBlocks = 2;
inline constexpr int kPushThreads = 16;
inline constexpr int kPushBlocks = 3;

/// Runs the kernel to its end, with all its threads at the same time.
template <class Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args, void*) {
  std::list<HostBlock> shared;
  std::vector<std::thread> running;
  for (int64_t block = 0; block < blocks; ++block) {
    HostBlock* mine = &shared.emplace_back(threads);
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([=, &args] {
        threadIdx.x = static_cast<unsigned>(thread);
        blockIdx.x = static_cast<unsigned>(block);
        gridDim.x = static_cast<unsigned>(blocks);
        host_block = mine;
        kernel(args);
      });
    }
  }
  for (std::thread& thread : running) thread.join();
  return cudaSuccess;
}

template <class Args>
cudaError_t load_kernel(void (*)(Args)) {
  return cudaSuccess;
}

inline void store_release(uint64_t* to, uint64_t value) {
  std::atomic_ref<uint64_t>(*to).store(value, std::memory_order_release);
}
inline uint64_t load_acquire(const uint64_t* from) {
  ::sched_yield();  // there are more threads than processors
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(from)).load(std::memory_order_acquire);
}
inline uint32_t load_word(const uint32_t* from) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(from)).load(std::memory_order_relaxed);
}
inline void store_word(uint32_t* to, uint32_t value) {
  std::atomic_ref<uint32_t>(*to).store(value, std::memory_order_relaxed);
}
inline uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace shoal::cuda
