// Bias, norm and rotary embedding of q, k and v, and the writing of the cache. A warp does one head
// of one row. Everything has the CPU's order, so the bits are the CPU's, rounded to
// what q and the cache hold.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/paged.cuh"

namespace shoal::cuda {
namespace {

constexpr int kWarpLanes = 32;
constexpr int kWarps = 4;
/// What a lane has of a head, and of half a head, whose elements rotate in pairs.
constexpr int kElementsOfLane = kShoalMostHeadDim / kWarpLanes;
constexpr int kPairsOfLane = kElementsOfLane / 2;
/// A head, and the sums of its squares.
constexpr int kFloatsOfWarp = kShoalMostHeadDim + kSumLanes;
constexpr size_t kSharedBytes = kWarps * kFloatsOfWarp * sizeof(float);

/// One head in this warp's part of block memory. A lane loads all that it needs of an array before
/// it uses any of it, because otherwise each element would cost the full latency of memory.
class Head {
 public:
  __device__ explicit Head(int head_dim) : d_(head_dim) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
    lane_ = static_cast<int>(threadIdx.x) % kWarpLanes;
    x_ = reinterpret_cast<float*>(block_memory()) + warp * kFloatsOfWarp;
  }

  /// cos, sin: those of the row's position; null if the head does not rotate.
  __device__ void load(const float* from, const float* bias, const float* cos, const float* sin) {
    float value[kElementsOfLane] = {}, more[kElementsOfLane] = {};
    for_elements([&](int at, int i) { value[i] = load_global(from + at); });
    if (bias != nullptr) for_elements([&](int at, int i) { more[i] = load_global(bias + at); });
    if (cos != nullptr) {
      for_pairs([&](int at, int i) {
        cos_[i] = load_global(cos + at);
        sin_[i] = load_global(sin + at);
      });
    }
    __syncwarp();  // nobody still reads the head before
    for_elements(
        [&](int at, int i) { x_[at] = bias == nullptr ? value[i] : __fadd_rn(value[i], more[i]); });
    __syncwarp();
  }

  __device__ void normalize(const float* weight, float eps) {
    float weights[kElementsOfLane] = {};
    for_elements([&](int at, int i) { weights[i] = load_global(weight + at); });
    float* const sums = x_ + kShoalMostHeadDim;
    for (int first = lane_; first < kSumLanes; first += kWarpLanes) {
      float sum = 0;
      for (int i = first; i < d_; i += kSumLanes) sum = __fmaf_rn(x_[i], x_[i], sum);
      sums[first] = sum;
    }
    __syncwarp();
    const float scale = inverse_rms(sum_of_lanes(sums), d_, eps);
    for_elements([&](int at, int i) { x_[at] = __fmul_rn(__fmul_rn(x_[at], scale), weights[i]); });
    __syncwarp();
  }

  /// By the angles that were loaded with the head.
  __device__ void rotate() {
    const int half = d_ / 2;
    for_pairs([&](int at, int i) {
      const float a = x_[at], b = x_[half + at], c = cos_[i], s = sin_[i];
      x_[at] = __fmaf_rn(-b, s, __fmul_rn(a, c));
      x_[half + at] = __fmaf_rn(a, s, __fmul_rn(b, c));
    });
    __syncwarp();
  }

  /// Writes `elements` from element `at` of an array on. Those behind the head are zeros.
  __device__ void store(void* to, int32_t type, int64_t at, int elements) const {
    for (int i = lane_; i < elements; i += kWarpLanes)
      store_element(to, type, at + i, i < d_ ? x_[i] : 0);
  }

 private:
  /// Calls body(element of the head, which of this lane's it is).
  template <class Body>
  __device__ void for_elements(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kElementsOfLane; ++i) {
      const int at = lane_ + i * kWarpLanes;
      if (at < d_) body(at, i);
    }
  }
  /// The same for the elements of the first half.
  template <class Body>
  __device__ void for_pairs(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kPairsOfLane; ++i) {
      const int at = lane_ + i * kWarpLanes;
      if (at < d_ / 2) body(at, i);
    }
  }

  const int d_;
  int lane_;
  float* x_;
  float cos_[kPairsOfLane] = {}, sin_[kPairsOfLane] = {};
};

/// Blocks: groups of heads x rows. The heads are those of q, then those of k, then those of v.
__global__ void __launch_bounds__(kWarps* kWarpLanes)
    qkv_kernel(const __grid_constant__ ShoalQkv args) {
  await_earlier_kernels();
  const ShoalKvLayer& cache = args.cache;
  const int d = cache.head_dim, elements = row_elements(cache);
  const int slot =
      static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpLanes;
  if (slot >= args.heads + 2 * cache.kv_heads) return;
  const bool is_q = slot < args.heads, is_v = slot >= args.heads + cache.kv_heads;
  const float* const norm = is_q ? args.q_norm : is_v ? nullptr : args.k_norm;
  Head head(d);
  for (int64_t row = blockIdx.y; row < args.step.rows; row += gridDim.y) {
    const RowPlace place = place_of(args.step, row);
    if (place.is_idle() || place.position >= args.positions) continue;
    const int kv_head = slot - args.heads - (is_v ? cache.kv_heads : 0);
    const int64_t tile =
        is_q ? 0 : tile_of(cache, args.step, place.sequence, place.position, kv_head);
    const int64_t angles = static_cast<int64_t>(place.position) * (d / 2);
    head.load(args.qkv + row * args.qkv_stride + slot * d,
              args.bias == nullptr ? nullptr : args.bias + slot * d,
              is_v ? nullptr : args.cos + angles, is_v ? nullptr : args.sin + angles);
    if (norm != nullptr) head.normalize(norm, args.eps);
    if (!is_v) head.rotate();
    if (is_q) {
      head.store(args.q, activation_type(cache.type), row * args.q_stride + slot * elements,
                 elements);
      continue;
    }
    head.store(cache.data, cache.type,
               tile + (is_v ? values_of_tile(cache) : 0) + place.position % kBlockTokens * elements,
               elements);
  }
}

bool is_valid(const ShoalQkv& args) {
  if (!is_valid_step(args.step) || !is_valid_cache(args.cache)) return false;
  if (!in_range(args.heads, 1, kShoalMostHeads) || args.positions < 0) return false;
  const int64_t d = args.cache.head_dim, columns = (args.heads + 2 * args.cache.kv_heads) * d;
  return is_given(args.qkv, 4) && in_range(args.qkv_stride, columns, kMostStride) &&
         is_given_or_null(args.bias, 4) && is_given_or_null(args.q_norm, 4) &&
         is_given_or_null(args.k_norm, 4) && is_given(args.cos, 4) && is_given(args.sin, 4) &&
         is_valid_q(args.q, args.q_stride, int64_t{args.heads} * row_elements(args.cache));
}

}  // namespace

int32_t qkv(const ShoalQkv* args, void* stream) {
  if (args->step.rows == 0) return cudaSuccess;
  if (!is_valid(*args)) return cudaErrorInvalidValue;
  const Grid grid{tiles(args->heads + 2 * args->cache.kv_heads, kWarps),
                  std::min<int64_t>(args->step.rows, kMostBlocksY), 1};
  return launch_early(&qkv_kernel, grid, kWarps * kWarpLanes, kSharedBytes, *args, stream);
}

int32_t load_qkv() {
  return load_kernel(&qkv_kernel, kSharedBytes);
}

}  // namespace shoal::cuda
