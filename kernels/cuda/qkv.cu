// Bias, norm and rotary embedding of q, k and v, and the writing of the cache. A warp does several
// heads of one row. Its lanes keep them in registers, and move 16 bytes at once where the arrays
// are aligned. Everything has the CPU's order, so the bits are the CPU's, rounded to what q and the
// cache hold.
#include <cuda_runtime.h>

#include "kernels/cuda/arithmetic.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/machine.cuh"
#include "kernels/cuda/paged.cuh"

namespace shoal::cuda {
namespace {

constexpr int kWarpLanes = 32;
constexpr int kMostWarps = 4;  // of a block
/// How many elements of each half of a head a lane holds. The lanes of a warp together hold a whole
/// head, even the largest one.
constexpr int kOfHalf = 4;
static_assert(2 * kOfHalf * kWarpLanes == kShoalMostHeadDim && kOfHalf % kWide == 0);
/// The heads of which a lane has some. It loads all that it needs of them before it uses any,
/// because otherwise each would cost the full latency of memory.
constexpr int kHeadsOfLane = 2;
/// A warp's heads, and the scale of each.
constexpr int kMostHeadsOfWarp = kHeadsOfLane * kWarpLanes;
constexpr int kFloatsOfWarp = kHeadsOfLane * kShoalMostHeadDim + kMostHeadsOfWarp;
constexpr size_t kSharedBytes = kMostWarps * kFloatsOfWarp * sizeof(float);

/// The arguments, and how a launch divides the heads: 2^lane_bits lanes share one.
struct QkvLaunch {
  ShoalQkv args;
  int32_t lane_bits;
};

/// What a lane has of a head: some of the first half, and what rotates with it in the second half.
struct Part {
  Floats<kOfHalf> first, second;
};
using Parts = Part[kHeadsOfLane];

/// Which part of its heads a lane has: of each half a group of kWidth elements, then one behind
/// those of the head's other lanes, and so on.
template <int kWidth>
class Lane {
 public:
  /// Blocks that a multiprocessor must have room for, which leaves a lane 64 registers, or 80 with
  /// groups of one. So enough loads are under way to keep memory busy.
  static constexpr int kBlocksAtOnce = kWidth == kWide ? 8 : 6;

  __device__ Lane(int head_dim, int lane_bits)
      : half_(head_dim / 2),
        lanes_(1 << lane_bits),
        at_(static_cast<int>(threadIdx.x & ((1U << lane_bits) - 1))),
        head_(static_cast<int>(threadIdx.x % kWarpLanes >> lane_bits)),
        at_once_(kWarpLanes >> lane_bits) {}

  __device__ int heads_of_warp() const { return kHeadsOfLane * at_once_; }
  /// Which of the warp's heads the lane's head number i is.
  __device__ int head(int i) const { return head_ + i * at_once_; }
  /// The most elements of a head.
  __device__ int room() const { return 2 * kOfHalf * lanes_; }

  /// Loads this lane's part of half a head, which begins at element `begin` of the array.
  __device__ Floats<kOfHalf> load_half(const float* from, int begin) const {
    Floats<kOfHalf> part = {};
    for_groups([&](int group, int k) {
      const auto value = load_floats<kWidth>(from + begin, group);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) part.lane[k + i] = value.lane[i];
    });
    return part;
  }
  __device__ Part load(const float* from, int begin) const {
    return {load_half(from, begin), load_half(from, begin + half_)};
  }

  /// Writes a head of `elements` to an array, from element `at` on. Those behind the lanes' are
  /// zeros.
  __device__ void store(void* to, int32_t type, int64_t at, int elements, const Part& part) const {
    for_groups([&](int group, int k) {
      store_elements<kWidth>(to, type, at, group, some_of(part.first, k));
      store_elements<kWidth>(to, type, at + half_, group, some_of(part.second, k));
    });
    for (int i = 2 * half_ + at_; i < elements; i += lanes_) store_element(to, type, at + i, 0);
  }
  /// The same to block memory.
  __device__ void put(float* to, const Part& part) const {
    for_groups([&](int group, int k) {
      reinterpret_cast<Floats<kWidth>*>(to)[group] = some_of(part.first, k);
      reinterpret_cast<Floats<kWidth>*>(to + half_)[group] = some_of(part.second, k);
    });
  }

 private:
  /// Calls body(group of a half, which of the lane's elements is its first) for each of them.
  template <class Body>
  __device__ void for_groups(const Body& body) const {
#pragma unroll
    for (int k = 0; k < kOfHalf; k += kWidth) {
      const int group = at_ + k / kWidth * lanes_;
      if (group * kWidth < half_) body(group, k);
    }
  }
  __device__ static Floats<kWidth> some_of(const Floats<kOfHalf>& part, int k) {
    Floats<kWidth> some;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) some.lane[i] = part.lane[k + i];
    return some;
  }

  const int half_, lanes_, at_, head_, at_once_;
};

/// One of the heads of a row, which are those of q, then those of k, then those of v.
struct Head {
  int slot, heads, kv_heads;

  __device__ bool exists() const { return slot < heads + 2 * kv_heads; }
  __device__ bool is_q() const { return slot < heads; }
  __device__ bool is_v() const { return slot >= heads + kv_heads; }
  __device__ int kv_head() const { return slot - heads - (is_v() ? kv_heads : 0); }
  __device__ const float* norm(const ShoalQkv& args) const {
    return is_q() ? args.q_norm : is_v() ? nullptr : args.k_norm;
  }
};
using Heads = Head[kHeadsOfLane];

/// The lane's part of its heads of a row, with the bias.
template <int kWidth>
__device__ void load_heads(const ShoalQkv& args, const Lane<kWidth>& lane, const Heads& heads,
                           int64_t row, Parts& parts) {
  const int d = args.cache.head_dim;
  const float* const from = args.qkv + row * args.qkv_stride;
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
    if (heads[i].exists()) parts[i] = lane.load(from, heads[i].slot * d);
  }
  if (args.bias == nullptr) return;
  Parts biases = {};
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
    if (heads[i].exists()) biases[i] = lane.load(args.bias, heads[i].slot * d);
  }
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
#pragma unroll
    for (int k = 0; k < kOfHalf; ++k) {
      float &a = parts[i].first.lane[k], &b = parts[i].second.lane[k];
      a = __fadd_rn(a, biases[i].first.lane[k]);
      b = __fadd_rn(b, biases[i].second.lane[k]);
    }
  }
}

/// 1 / sqrt(mean + eps) of the squares of a head in block memory, which 16 neighbouring lanes sum.
/// All lanes of the warp take part.
__device__ float scale_of(const float* x, int head_dim, float eps) {
  float sums[kSumLanes / 16] = {};
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x % 16); first < head_dim; first += kSumLanes) {
#pragma unroll
    for (int i = 0; i < kSumLanes / 16; ++i) {
      const int at = first + 16 * i;
      if (at < head_dim) sums[i] = __fmaf_rn(x[at], x[at], sums[i]);
    }
  }
  const float sum =
      sum_of_sixteen(__fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3])));
  return inverse_rms(sum, head_dim, eps);
}

/// Normalizes those of the warp's heads that have a norm: v has none.
template <int kWidth>
__device__ void normalize(const ShoalQkv& args, const Lane<kWidth>& lane, const Heads& heads,
                          Parts& parts) {
  const unsigned thread = threadIdx.x;
  auto* const x = reinterpret_cast<float*>(block_memory()) + thread / kWarpLanes * kFloatsOfWarp;
  float* const scales = x + kHeadsOfLane * kShoalMostHeadDim;
  Parts weights = {};
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
    if (heads[i].norm(args) != nullptr) weights[i] = lane.load(heads[i].norm(args), 0);
  }
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) lane.put(x + lane.head(i) * lane.room(), parts[i]);
  __syncwarp();
  for (int head = static_cast<int>(thread % kWarpLanes / 16); head < lane.heads_of_warp();
       head += 2) {
    const float scale = scale_of(x + head * lane.room(), args.cache.head_dim, args.eps);
    if (thread % 16 == 0) scales[head] = scale;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
    if (heads[i].norm(args) == nullptr) continue;
    const float scale = scales[lane.head(i)];
#pragma unroll
    for (int k = 0; k < kOfHalf; ++k) {
      float &a = parts[i].first.lane[k], &b = parts[i].second.lane[k];
      a = __fmul_rn(__fmul_rn(a, scale), weights[i].first.lane[k]);
      b = __fmul_rn(__fmul_rn(b, scale), weights[i].second.lane[k]);
    }
  }
}

__device__ void rotate(Part& part, const Floats<kOfHalf>& cos, const Floats<kOfHalf>& sin) {
#pragma unroll
  for (int k = 0; k < kOfHalf; ++k) {
    const float a = part.first.lane[k], b = part.second.lane[k];
    part.first.lane[k] = __fmaf_rn(-b, sin.lane[k], __fmul_rn(a, cos.lane[k]));
    part.second.lane[k] = __fmaf_rn(a, sin.lane[k], __fmul_rn(b, cos.lane[k]));
  }
}

/// block: of the cache, to which k and v go.
template <int kWidth>
__device__ void store_head(const ShoalQkv& args, const Lane<kWidth>& lane, const Head& head,
                           int64_t row, int position, int32_t block, const Part& part) {
  const ShoalKvLayer& cache = args.cache;
  const int elements = row_elements(cache);
  const int64_t in_q = row * args.q_stride + head.slot * elements;
  const int64_t in_cache = tile_of_block(cache, block, head.kv_head()) +
                           (head.is_v() ? values_of_tile(cache) : 0) +
                           position % kBlockTokens * elements;
  lane.store(head.is_q() ? args.q : cache.data,
             head.is_q() ? activation_type(cache.type) : cache.type, head.is_q() ? in_q : in_cache,
             elements, part);
}

/// Blocks: rows x groups of heads.
template <int kWidth>
__global__ void __launch_bounds__(kMostWarps* kWarpLanes, Lane<kWidth>::kBlocksAtOnce)
    qkv_kernel(const __grid_constant__ QkvLaunch launch) {
  await_earlier_kernels();
  const ShoalQkv& args = launch.args;
  const Lane<kWidth> lane(args.cache.head_dim, launch.lane_bits);
  const unsigned warp = (blockIdx.y * blockDim.x + threadIdx.x) / kWarpLanes;
  const int first = static_cast<int>(warp) * lane.heads_of_warp();
  if (first >= args.heads + 2 * args.cache.kv_heads) return;
  const int64_t row = blockIdx.x;
  const RowPlace place = place_of(args.step, row);
  if (place.is_idle() || place.position >= args.positions) return;
  const int64_t angles = int64_t{place.position} * (args.cache.head_dim / 2);
  const auto cos = lane.load_half(args.cos + angles, 0), sin = lane.load_half(args.sin + angles, 0);
  Heads heads;
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i)
    heads[i] = {first + lane.head(i), args.heads, args.cache.kv_heads};
  Parts parts = {};
  load_heads(args, lane, heads, row, parts);
  // After the heads, because nvcc waits for it where it is loaded.
  const int32_t block = block_of(args.step, place);
  if (args.q_norm != nullptr || args.k_norm != nullptr) normalize(args, lane, heads, parts);
#pragma unroll
  for (int i = 0; i < kHeadsOfLane; ++i) {
    if (!heads[i].exists()) continue;
    if (!heads[i].is_v()) rotate(parts[i], cos, sin);
    store_head(args, lane, heads[i], row, place.position, block, parts[i]);
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

/// Whether all that is loaded can be loaded kWide floats at a time. What is stored to always can,
/// if half a head is a multiple of that.
bool loads_wide(const ShoalQkv& args) {
  return args.cache.head_dim / 2 % kWide == 0 && args.qkv_stride % kWide == 0 &&
         is_wide(args.qkv) && is_wide(args.bias) && is_wide(args.q_norm) && is_wide(args.k_norm) &&
         is_wide(args.cos) && is_wide(args.sin);
}

}  // namespace

int32_t qkv(const ShoalQkv* args, void* stream) {
  if (args->step.rows == 0) return cudaSuccess;
  if (!is_valid(*args)) return cudaErrorInvalidValue;
  QkvLaunch of{*args, 0};
  while (2 * kOfHalf << of.lane_bits < args->cache.head_dim) ++of.lane_bits;
  const int64_t heads_of_warp = kHeadsOfLane * (kWarpLanes >> of.lane_bits);
  const int64_t warps = tiles(args->heads + 2 * args->cache.kv_heads, heads_of_warp);
  const int64_t blocks = tiles(warps, kMostWarps);
  const bool norms = args->q_norm != nullptr || args->k_norm != nullptr;
  return launch_early(
      loads_wide(*args) ? &qkv_kernel<kWide> : &qkv_kernel<1>, Grid{args->step.rows, blocks, 1},
      static_cast<int>(tiles(warps, blocks)) * kWarpLanes, norms ? kSharedBytes : 0, of, stream);
}

int32_t load_qkv() {
  const cudaError_t error = load_kernel(&qkv_kernel<kWide>, kSharedBytes);
  return error != cudaSuccess ? error : load_kernel(&qkv_kernel<1>, kSharedBytes);
}

}  // namespace shoal::cuda
