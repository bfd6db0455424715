#pragma once
#include <cstdint>

#include "kernels/cuda/machine.cuh"
#include "runtime/device/cuda_module.h"

/// Applies a FoldProgram to single elements, in the order of runtime/comm/tree_sum.cc and so with
/// the same bits. Sums are float32, are rounded once each, and flush subnormals (--ftz=true), like
/// the CPU's compute threads.
namespace shoal::cuda {

/// The deepest stack that a program may need. As on the CPU, it is enough for a balanced tree over
/// 128 values.
inline constexpr int kMostFoldDepth = 8;

/// W neighbouring floats that are loaded and stored together.
template <int W>
struct alignas(sizeof(float) * W) Pack {
  float lane[W];
};

/// Bypasses the first-level cache, because nothing is read twice and peers write what is read here.
__device__ inline Pack<4> load_pack(const float* from, Pack<4>*) {
  const float4 value = __ldcg(reinterpret_cast<const float4*>(from));
  return {{value.x, value.y, value.z, value.w}};
}
__device__ inline Pack<1> load_pack(const float* from, Pack<1>*) {
  return {{__ldcg(from)}};
}
template <int W>
__device__ Pack<W> load(const float* from) {
  return load_pack(from, static_cast<Pack<W>*>(nullptr));
}
template <int W>
__device__ void store(float* to, const Pack<W>& value) {
  store_global(reinterpret_cast<Pack<W>*>(to), value);
}

template <int W>
__device__ Pack<W> add(const Pack<W>& a, const Pack<W>& b) {
  Pack<W> sum;
#pragma unroll
  for (int i = 0; i < W; ++i) sum.lane[i] = __fadd_rn(a.lane[i], b.lane[i]);
  return sum;
}

/// The stack shifts its values instead of being indexed, so that it stays in registers.
template <int W>
class Stack {
 public:
  __device__ void push(const Pack<W>& value) {
#pragma unroll
    for (int i = kMostFoldDepth - 1; i > 0; --i) values_[i] = values_[i - 1];
    values_[0] = value;
  }
  __device__ void merge() {
    values_[0] = add(values_[1], values_[0]);
#pragma unroll
    for (int i = 1; i + 1 < kMostFoldDepth; ++i) values_[i] = values_[i + 1];
  }
  __device__ const Pack<W>& top() const {
    return values_[0];
  }

 private:
  Pack<W> values_[kMostFoldDepth] = {};
};

/// load_value(i) returns the program's value i. Several values are loaded at once, because
/// otherwise each plane would cost the full latency of memory.
template <int W, class LoadValue>
__device__ Pack<W> fold(const ShoalTreeSum& program, const LoadValue& load_value) {
  constexpr int kAtOnce = 8;
  Stack<W> stack;
  for (int first = 0; first < program.values; first += kAtOnce) {
    Pack<W> loaded[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < program.values) loaded[i] = load_value(first + i);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= program.values) break;
      stack.push(loaded[i]);
      for (int merges = program.merges[first + i]; merges > 0; --merges) stack.merge();
    }
  }
  return stack.top();
}

/// Runs on the host. Whether the program leaves one value and needs no deeper stack than there is.
inline bool fold_is_valid(const ShoalTreeSum& program) {
  if (program.values < 1 || program.values > kShoalMostPlanes || program.count < 0) return false;
  int depth = 0;
  for (int i = 0; i < program.values; ++i) {
    if (++depth > kMostFoldDepth || program.merges[i] >= depth) return false;
    depth -= program.merges[i];
  }
  return depth == 1;
}

inline bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace shoal::cuda
