#pragma once
#include <cstdint>
#include <span>

#include "runtime/base/status.h"

namespace shoal {

/// What a rank finds on its device when everything but its KV cache has been taken there.
struct KvRoom {
  int32_t device = 0;  ///< CUDA's number; ranks with the same one share that device
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  int64_t block_bytes = 0;  ///< of one block of this rank's KV cache
};
template <typename Archive>
void fields(Archive& archive, KvRoom& room) {
  archive(room.device, room.free_bytes, room.total_bytes, room.block_bytes);
}

/// How many blocks of KV cache a group takes: every rank has as many blocks as any other.
struct KvBlocksWanted {
  int32_t planned = 0;  ///< the most
  int32_t least = 1;    ///< with fewer the group does not start
};

/// The number of blocks for which all ranks have room, at most wanted.planned. A small part of each
/// device (1/256) stays free, because the driver takes memory later too. RESOURCE_EXHAUSTED: it is
/// less than wanted.least; the message names the device that has the least room, and the numbers.
Result<int32_t> kv_blocks_that_fit(std::span<const KvRoom> ranks, const KvBlocksWanted& wanted);

}  // namespace shoal
