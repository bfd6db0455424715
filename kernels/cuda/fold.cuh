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

/// How many neighbouring floats a lane loads, adds and stores at once.
inline constexpr int kGroup = 4;
struct alignas(sizeof(float) * kGroup) Pack {
  float lane[kGroup];
};

/// Bypasses the first-level cache, because nothing is read twice and peers write what is read here.
__device__ inline Pack load(const float* from) {
  const float4 value = __ldcg(reinterpret_cast<const float4*>(from));
  return {{value.x, value.y, value.z, value.w}};
}
__device__ inline void store(float* to, const Pack& value) {
  store_global(reinterpret_cast<Pack*>(to), value);
}

/// Loads floats [group * kGroup, (group + 1) * kGroup) of a plane of `count`. Those past the end of
/// the plane count as 0. aligned: whether the plane begins at a multiple of a Pack. One by one the
/// floats are the same, so one kernel serves planes of any alignment and length.
__device__ inline Pack load_group(const float* plane, int64_t group, int64_t count, bool aligned) {
  const int64_t at = group * kGroup;
  if (aligned && at + kGroup <= count) return load(plane + at);
  Pack value = {};
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (at + i < count) value.lane[i] = __ldcg(plane + at + i);
  }
  return value;
}

__device__ inline void store_group(float* out, int64_t group, int64_t count, bool aligned,
                                   const Pack& value) {
  const int64_t at = group * kGroup;
  if (aligned && at + kGroup <= count) {
    store(out + at, value);
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    if (at + i < count) store_global(out + at + i, value.lane[i]);
  }
}

__device__ inline float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ inline Pack add(const Pack& a, const Pack& b) {
  Pack sum;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) sum.lane[i] = __fadd_rn(a.lane[i], b.lane[i]);
  return sum;
}

/// A stack of sums, each a float or a Pack. It shifts its values instead of being indexed, so that
/// it stays in registers.
template <class Value>
class Stack {
 public:
  __device__ void push(const Value& value) {
#pragma unroll
    for (int i = kMostFoldDepth - 1; i > 0; --i) values_[i] = values_[i - 1];
    values_[0] = value;
  }
  __device__ void merge() {
    values_[0] = add(values_[1], values_[0]);
#pragma unroll
    for (int i = 1; i + 1 < kMostFoldDepth; ++i) values_[i] = values_[i + 1];
  }
  __device__ const Value& top() const {
    return values_[0];
  }

 private:
  Value values_[kMostFoldDepth] = {};
};

/// load_value(i) returns the program's value i. Several values are loaded at once, because
/// otherwise each plane would cost the full latency of memory.
template <class LoadValue>
__device__ Pack fold(const ShoalTreeSum& program, const LoadValue& load_value) {
  constexpr int kAtOnce = 8;
  Stack<Pack> stack;
  for (int first = 0; first < program.values; first += kAtOnce) {
    Pack loaded[kAtOnce] = {};
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

/// Whether a Pack may be loaded from here, or stored.
__host__ __device__ inline bool is_aligned(const float* floats) {
  return reinterpret_cast<uintptr_t>(floats) % alignof(Pack) == 0;
}

}  // namespace shoal::cuda
