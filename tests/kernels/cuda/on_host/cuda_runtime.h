#pragma once
// A FAKE of CUDA's header, for the kernels of communicators only. A block is a group of host
// threads that meet at a barrier. It defines only what those kernels use, and has no __shared__
// memory.
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstring>
#include <sched.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(threads)

enum cudaError_t : int { cudaSuccess = 0, cudaErrorInvalidValue = 1 };

struct float4 {
  float x, y, z, w;
};
struct ThreadPlace {
  unsigned x = 0;
};
inline thread_local ThreadPlace threadIdx, blockIdx, gridDim;

/// What the threads of a block share.
struct HostBlock {
  explicit HostBlock(std::ptrdiff_t threads) : barrier(threads) {}
  std::barrier<> barrier;
  std::atomic<int> any{0};
};
inline thread_local HostBlock* host_block = nullptr;

inline void __syncthreads() {
  host_block->barrier.arrive_and_wait();
}
inline int __syncthreads_or(int value) {
  if (value != 0) host_block->any.store(1);
  __syncthreads();
  const int any = host_block->any.load();
  __syncthreads();
  if (threadIdx.x == 0) host_block->any.store(0);
  __syncthreads();
  return any;
}

template <class T>
T __ldcg(const T* from) {
  return *from;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline void __threadfence() {}         // the next access is atomic, and stronger
inline void __threadfence_system() {}  // not needed for the same reason
inline void __nanosleep(unsigned) {
  ::sched_yield();
}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return std::atomic_ref<unsigned>(*to).fetch_add(value, std::memory_order_acq_rel);
}
