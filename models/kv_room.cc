#include "models/kv_room.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"

namespace shoal {
namespace {

constexpr uint64_t kPartThatStaysFree = 256;

/// What a device has for one more block of each of its ranks, and how many of these fit.
struct DeviceRoom {
  uint64_t free_bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
};

DeviceRoom room_on(int32_t device, std::span<const KvRoom> ranks) {
  DeviceRoom room{.free_bytes = UINT64_MAX};
  for (const KvRoom& rank : ranks) {
    if (rank.device != device) continue;
    const uint64_t stays = rank.total_bytes / kPartThatStaysFree;
    room.free_bytes =
        std::min(room.free_bytes, rank.free_bytes < stays ? 0 : rank.free_bytes - stays);
    room.block_bytes += static_cast<uint64_t>(rank.block_bytes);
  }
  room.blocks = room.free_bytes / std::max<uint64_t>(room.block_bytes, 1);
  return room;
}

}  // namespace

Result<int32_t> kv_blocks_that_fit(std::span<const KvRoom> ranks, const KvBlocksWanted& wanted) {
  auto blocks = static_cast<uint64_t>(wanted.planned);
  for (const KvRoom& rank : ranks) {
    const DeviceRoom room = room_on(rank.device, ranks);
    blocks = std::min(blocks, room.blocks);
    if (room.blocks >= static_cast<uint64_t>(wanted.least)) continue;
    return Status::error(
        Code::kResourceExhausted,
        cat("GPU ", rank.device, " has ", room.free_bytes, " B of ", rank.total_bytes,
            " B left for KV cache, which is ", counted(room.blocks, "block"), " of ",
            room.block_bytes, " B; ", wanted.planned, " were planned and at least ", wanted.least,
            " are needed. The rest is taken, by this group or by others (nvidia-smi lists them): "
            "use a smaller --kv-cache-memory or --max-model-len, more ranks, or --device cpu"));
  }
  return static_cast<int32_t>(blocks);
}

}  // namespace shoal
