// The all_reduce by pushing, over peer memory. In each step, a rank's kernel does this:
//
//   1. step = the step counter of its area + 1. The slot is given by the parity of step.
//   2. It writes its planes into that slot of every peer's area. Then each block sets the flag
//      (this rank, block) there to step and to the mark of the collective.
//   3. It waits until the flags of the block in its own area have reached step for every peer, and
//      sums what its slot holds. A peer whose flag of this step has another mark is in another
//      collective, and then nothing is summed. If a peer is already in its next step, the peer has
//      compared the two marks itself, because the flag of this rank is still that of this step.
//
// Blocks with the same number work on the same elements on every rank, so a block only waits for
// the blocks with its number. The slot of step n is filled again in step n + 2. A rank gets there
// only when it has seen all flags of step n + 1. A peer sets those in a kernel that began after its
// kernel of step n, the reader, had ended. So no barrier is needed at the end. The counter is in
// device memory and only the kernel changes it, so a replayed CUDA graph continues with the next
// step. Its mark stays that of the capture: all ranks must replay the graph that they captured
// together.
#include <algorithm>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/fold.cuh"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

// The low bits of a flag hold the mark, and the other 48 the step: with a push each microsecond
// they last for nine years.
constexpr int kMarkBits = 16;
// After this time, a wait also looks at host memory and lets others run.
constexpr uint64_t kPatienceNs = 1'000'000;

/// The head of an area. The two slots follow it. Zeroed before first use.
struct AreaHead {
  struct alignas(256) {
    uint64_t steps;     ///< steps that this area's rank has finished
    uint32_t finished;  ///< number of blocks of the running kernel that have ended
    uint32_t failed;    ///< 1 if a wait has ended without its peer
  } control;
  /// flags[rank][block]: the last step that this block of this rank has pushed here, and its mark.
  uint64_t flags[kShoalMostRanks][kPushBlocks];
};
static_assert(sizeof(AreaHead) % 256 == 0);

__host__ __device__ int64_t slot_floats(int64_t area_bytes) {
  return (area_bytes - static_cast<int64_t>(sizeof(AreaHead))) / 2 / 256 * 256 /
         static_cast<int64_t>(sizeof(float));
}
__host__ __device__ int64_t padded(int64_t count) {
  return (count + kGroup - 1) / kGroup * kGroup;
}

__device__ AreaHead* head_of(void* area) {
  return static_cast<AreaHead*>(area);
}
__device__ float* slot_of(void* area, int64_t area_bytes, uint64_t step) {
  return reinterpret_cast<float*>(head_of(area) + 1) + (step % 2) * slot_floats(area_bytes);
}

/// Waits until the flag has reached `least`, and returns it. Returns 0 if that takes longer than
/// spin_ns, or if another wait of this rank has failed.
__device__ uint64_t wait_for(const uint64_t* flag, uint64_t least, uint64_t spin_ns,
                             const uint32_t* failure) {
  constexpr int kPolls = 64;
  if (const uint64_t seen = load_acquire(flag); seen >= least) return seen;
  const uint64_t begin = nanoseconds();
  for (;;) {
    for (int i = 0; i < kPolls; ++i) {
      if (const uint64_t seen = load_acquire(flag); seen >= least) return seen;
    }
    const uint64_t waited = nanoseconds() - begin;
    if (waited >= spin_ns) return 0;
    if (waited < kPatienceNs) continue;
    if (load_word(failure) != 0) return 0;
    __nanosleep(1000);
  }
}

/// The caller's arguments and what a launch adds to them.
struct Launch {
  ShoalPushAllReduce args;
  int32_t first;  ///< index of this rank's first value among all values
  /// Whether this rank's planes may be moved four floats at once. out_aligned: whether out may.
  bool own_aligned;
  bool out_aligned;
};

__device__ void push_planes(const Launch& launch, uint64_t step) {
  const ShoalPushAllReduce& args = launch.args;
  const int64_t pitch = padded(args.sum.count);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPushThreads;
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * kPushThreads + threadIdx.x;
       group < pitch / kGroup; group += stride) {
    for (int plane = 0; plane < args.contributions[args.rank]; ++plane) {
      const Pack value =
          load_group(args.own + plane * args.pitch, group, args.sum.count, launch.own_aligned);
      const int64_t at = (launch.first + plane) * pitch + group * kGroup;
      for (int distance = 1; distance < args.world_size; ++distance) {
        const int peer = (args.rank + distance) % args.world_size;
        store(slot_of(args.areas[peer], args.area_bytes, step) + at, value);
      }
    }
  }
}

__device__ void sum_planes(const Launch& launch, uint64_t step) {
  const ShoalPushAllReduce& args = launch.args;
  const int64_t pitch = padded(args.sum.count);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kPushThreads;
  const float* slot = slot_of(args.areas[args.rank], args.area_bytes, step);
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * kPushThreads + threadIdx.x;
       group < pitch / kGroup; group += stride) {
    const Pack sum = fold(args.sum, [&](int value) {
      const int mine = value - launch.first;
      if (mine < 0 || mine >= args.contributions[args.rank])
        return load(slot + value * pitch + group * kGroup);
      return load_group(args.own + mine * args.pitch, group, args.sum.count, launch.own_aligned);
    });
    store_group(args.sum.out, group, args.sum.count, launch.out_aligned, sum);
  }
}

/// Reports to every peer that this block's part has arrived, and waits for theirs, with one thread
/// per peer. Returns false if a peer has not come, or is in another collective.
__device__ bool exchange(const ShoalPushAllReduce& args, uint64_t step) {
  AreaHead* own = head_of(args.areas[args.rank]);
  bool lost = false;
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < args.world_size && peer != args.rank) {
    const uint64_t flag = step << kMarkBits | args.mark;
    store_release(&head_of(args.areas[peer])->flags[args.rank][blockIdx.x], flag);
    const uint64_t theirs =
        wait_for(&own->flags[peer][blockIdx.x], step << kMarkBits, args.spin_ns, args.failure);
    const bool other = theirs >> kMarkBits == step && theirs != flag;
    lost = theirs == 0 || other;
    if (lost) {
      // If two ranks are lost at the same time, either may be named.
      const auto word = 1 + static_cast<uint32_t>(peer);
      if (load_word(args.failure) == 0) {
        for (int i = 0; i < kShoalNameWords; ++i) store_word(args.failure + 1 + i, args.name[i]);
        __threadfence_system();
        store_word(args.failure, other ? word + kShoalOtherMark : word);
      }
      store_word(&own->control.failed, 1);
      __threadfence_system();
    }
  }
  return __syncthreads_or(lost) == 0;
}

__global__ void __launch_bounds__(kPushThreads)
    push_all_reduce_kernel(const __grid_constant__ Launch launch) {
  const ShoalPushAllReduce& args = launch.args;
  AreaHead* own = head_of(args.areas[args.rank]);
  const bool failed = threadIdx.x == 0 && load_word(&own->control.failed) != 0;
  if (__syncthreads_or(failed) != 0) return;
  // The counter stays the same until every block has been through exchange.
  const uint64_t step = own->control.steps + 1;

  push_planes(launch, step);
  if (!exchange(args, step)) return;
  sum_planes(launch, step);

  // The last block to end moves the counter, because by then the others have read it.
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&own->control.finished, 1U) + 1 < gridDim.x) return;
  own->control.finished = 0;
  own->control.steps = step;
}

bool is_valid(const ShoalPushAllReduce& args) {
  if (!fold_is_valid(args.sum) || args.world_size < 1 || args.world_size > kShoalMostRanks)
    return false;
  if (args.rank < 0 || args.rank >= args.world_size || args.failure == nullptr) return false;
  int64_t values = 0;
  for (int rank = 0; rank < args.world_size; ++rank) {
    if (args.contributions[rank] < 0 || args.areas[rank] == nullptr) return false;
    values += args.contributions[rank];
  }
  return values == args.sum.values &&
         values * padded(args.sum.count) <= slot_floats(args.area_bytes);
}

}  // namespace

int64_t push_floats(int64_t area_bytes, int32_t world_size, int32_t most_contributions) {
  const int64_t values = static_cast<int64_t>(world_size) * most_contributions;
  if (area_bytes <= static_cast<int64_t>(sizeof(AreaHead)) || values <= 0) return 0;
  return slot_floats(area_bytes) / values / kGroup * kGroup;
}

int32_t push_all_reduce(const ShoalPushAllReduce* args, void* stream) {
  if (!is_valid(*args)) return cudaErrorInvalidValue;
  if (args->sum.count == 0) return cudaSuccess;
  Launch arguments{*args, 0, false, is_aligned(args->sum.out)};
  for (int rank = 0; rank < args->rank; ++rank) arguments.first += args->contributions[rank];
  arguments.own_aligned =
      is_aligned(args->own) && (args->contributions[args->rank] <= 1 || args->pitch % kGroup == 0);
  const int64_t groups = padded(args->sum.count) / kGroup;
  const int64_t blocks = std::min<int64_t>(kPushBlocks, (groups + kPushThreads - 1) / kPushThreads);
  return launch(&push_all_reduce_kernel, blocks, kPushThreads, arguments, stream);
}

int32_t load_push_all_reduce() {
  return load_kernel(&push_all_reduce_kernel);
}

}  // namespace shoal::cuda
