#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/host_checks.h"
#include "kernels/cuda/machine.cuh"

/// Groups of neighbouring elements, each of which one instruction loads or stores. A kernel that
/// moves groups of kWide elements has groups of one too, for arrays that are not aligned to more.
namespace shoal::cuda {

/// The floats of 16 bytes, which is the most that an instruction moves.
inline constexpr int kWide = 4;

template <int kWidth>
struct alignas(sizeof(float) * kWidth) Floats {
  float lane[kWidth];
};
/// As many elements of 16 bits, of which the first is the lowest. It is one number, because nvcc
/// takes a struct of them apart as soon as it is loaded, and then waits for each load by itself.
template <int kWidth>
using Halves = std::conditional_t<kWidth == 1, uint16_t, uint64_t>;
static_assert(sizeof(Halves<kWide>) == kWide * sizeof(uint16_t));

/// Group number `group` of an array. These are arrays of groups and not of floats, because nvcc
/// makes one instruction of it then, however `group` is computed.
template <int kWidth>
__device__ inline Floats<kWidth> load_floats(const float* from, int64_t group) {
  return load_global(reinterpret_cast<const Floats<kWidth>*>(from) + group);
}
template <int kWidth>
__device__ inline void store_floats(float* to, int64_t group, const Floats<kWidth>& value) {
  store_global(reinterpret_cast<Floats<kWidth>*>(to) + group, value);
}

/// The same of an array of bf16 or float16. What is loaded is widened apart, so that several groups
/// are loaded before one is waited for.
template <int kWidth>
__device__ inline Halves<kWidth> load_halves(const uint16_t* from, int64_t group) {
  return load_global(reinterpret_cast<const Halves<kWidth>*>(from) + group);
}
template <int kWidth>
__device__ inline Floats<kWidth> widened(Halves<kWidth> halves, int32_t type) {
  Floats<kWidth> value;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const auto bits = static_cast<uint16_t>(halves >> 16 * i);
    value.lane[i] = type == kShoalF16 ? from_f16(bits) : from_bf16(bits);
  }
  return value;
}

/// Stores group number `group` behind element `begin` of an array of this type, each element
/// rounded to nearest even.
template <int kWidth>
__device__ inline void store_elements(void* to, int32_t type, int64_t begin, int64_t group,
                                      const Floats<kWidth>& value) {
  if (type == kShoalF32) return store_floats<kWidth>(static_cast<float*>(to) + begin, group, value);
  uint64_t bits = 0;
  if (type == kShoalF16) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) bits |= uint64_t{to_f16(value.lane[i])} << 16 * i;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) bits |= uint64_t{to_bf16(value.lane[i])} << 16 * i;
  }
  auto* const halves = reinterpret_cast<Halves<kWidth>*>(static_cast<uint16_t*>(to) + begin);
  store_global(halves + group, static_cast<Halves<kWidth>>(bits));
}

/// Whether all groups of kWide elements of an array are aligned. It may be null, and then none is
/// moved.
inline bool is_wide(const float* array) {
  return is_given_or_null(array, kWide * sizeof(float));
}
inline bool is_wide(const void* array, int32_t type) {
  return is_given_or_null(array, kWide * element_bytes(type));
}

}  // namespace shoal::cuda
