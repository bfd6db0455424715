#pragma once
#include <cstdint>
#include <cuda_runtime.h>

/// The part of the kernels that depends on the machine: launches, and memory that others can see. A
/// test replaces this file by another to run the same kernels in threads of the host
/// (tests/kernels/cuda/on_host).
namespace shoal::cuda {

inline constexpr int kSumThreads = 256;
inline constexpr int kSumBlocks = 1024;  ///< at most; the kernel's loop covers the rest
inline constexpr int kPushThreads = 512;
/// At most, because all of them must run at the same time, beside the kernels of others.
inline constexpr int kPushBlocks = 32;

template <class Args>
cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args,
                   void* stream) {
  Args copy = args;
  void* parameters[] = {&copy};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                          parameters, 0, static_cast<cudaStream_t>(stream));
}

template <class Args>
cudaError_t load_kernel(void (*kernel)(Args)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

#ifdef __CUDACC__
// The scope is .sys, because the other side is another process's kernel, perhaps on another device.
// A release after a barrier of the block covers everything that the block wrote before it.
__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// A word that may change at any moment, and whose order with other words does not matter. It does
/// without atomics, because a bus may not support them for host memory.
__device__ inline uint32_t load_word(const uint32_t* from) {
  return *static_cast<const volatile uint32_t*>(from);
}
__device__ inline void store_word(uint32_t* to, uint32_t value) {
  *static_cast<volatile uint32_t*>(to) = value;
}

__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#endif

}  // namespace shoal::cuda
