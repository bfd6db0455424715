#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/gpu_name.h"
#include "runtime/base/status.h"

namespace shoal {

/// What a rank finds on its device when everything but its KV cache has been taken there.
struct KvRoom {
  GpuName gpu;  ///< ranks with the same one share it
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  int64_t block_bytes = 0;  ///< of one block of this rank's KV cache
  // What it has taken beside:
  int64_t weight_bytes = 0;
  int64_t activation_bytes = 0;  ///< of a step, and the rope table
};
template <typename Archive>
void fields(Archive& archive, KvRoom& room) {
  archive(room.gpu, room.free_bytes, room.total_bytes, room.block_bytes, room.weight_bytes,
          room.activation_bytes);
}

/// How many blocks of KV cache a group takes: every rank has as many blocks as any other.
struct KvBlocksWanted {
  int32_t planned = 0;  ///< the most
  int32_t least = 1;    ///< with fewer the group does not start
  /// The part of a device's memory that may be in use once the cache is there, by this group and by
  /// others (--gpu-memory-utilization).
  double share = 1;
};

/// The number of blocks for which all ranks have room, at most wanted.planned: of a device's whole
/// memory the wanted share, less all that is in use there. A small part of each device (1/256)
/// stays free, because the driver takes memory later too. The ranks of a device get equally many.
/// RESOURCE_EXHAUSTED: it is less than wanted.least; the message names the device that has too
/// little room, and the numbers.
Result<int32_t> kv_blocks_that_fit(std::span<const KvRoom> ranks, const KvBlocksWanted& wanted);

/// Where the memory of the group's devices is once each rank has `blocks` blocks of KV cache: a
/// line for each device, in the order of the ranks. What is in use and is none of the group's
/// weights, activations and KV cache counts as others', which includes what CUDA and the
/// transport take.
std::vector<std::string> describe_device_memory(std::span<const KvRoom> ranks, int32_t blocks);

}  // namespace shoal
