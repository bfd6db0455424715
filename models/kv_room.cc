#include "models/kv_room.h"

#include <algorithm>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"

namespace shoal {
namespace {

constexpr uint64_t kPartThatStaysFree = 256;

/// What a device has for one more block of each of its ranks, and how many of these fit.
struct DeviceRoom {
  uint64_t may_be_used = 0;  // of all its bytes
  uint64_t used = 0;
  uint64_t left = 0;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
};

uint64_t difference(uint64_t more, uint64_t less) {
  return more > less ? more - less : 0;
}

std::string room_text(uint64_t bytes) {
  return bytes_text(static_cast<int64_t>(bytes));
}

DeviceRoom room_on(const GpuName& gpu, std::span<const KvRoom> ranks, double share) {
  DeviceRoom room;
  for (const KvRoom& rank : ranks) {
    if (!is_same_gpu(rank.gpu, gpu)) continue;
    const auto of_share = static_cast<uint64_t>(static_cast<double>(rank.total_bytes) * share);
    room.may_be_used = std::min(of_share, rank.total_bytes - rank.total_bytes / kPartThatStaysFree);
    room.used = std::max(room.used, difference(rank.total_bytes, rank.free_bytes));
    room.block_bytes += static_cast<uint64_t>(rank.block_bytes);
  }
  room.left = difference(room.may_be_used, room.used);
  room.blocks = room.left / std::max<uint64_t>(room.block_bytes, 1);
  return room;
}

}  // namespace

Result<int32_t> kv_blocks_that_fit(std::span<const KvRoom> ranks, const KvBlocksWanted& wanted) {
  auto blocks = static_cast<uint64_t>(wanted.planned);
  for (const KvRoom& rank : ranks) {
    const DeviceRoom room = room_on(rank.gpu, ranks, wanted.share);
    blocks = std::min(blocks, room.blocks);
    if (room.blocks >= static_cast<uint64_t>(wanted.least)) continue;
    return Status::error(
        Code::kResourceExhausted,
        cat(to_text(rank.gpu), " has ", room_text(room.left), " of ", room_text(rank.total_bytes),
            " left for KV cache, which is ", counted(room.blocks, "block"), " of ",
            room_text(room.block_bytes), "; ", counted(wanted.planned, "was", "were"),
            " planned and at least ", counted(wanted.least, "is", "are"), " needed. ",
            room_text(room.used),
            " are in use, by this group or by others (nvidia-smi lists them), and ",
            room_text(room.may_be_used), " may be: use ",
            wanted.share < 1 ? "a larger --gpu-memory-utilization, " : "",
            "a smaller --kv-cache-memory or --max-model-len, more ranks, or --device cpu"));
  }
  return static_cast<int32_t>(blocks);
}

std::vector<std::string> describe_device_memory(std::span<const KvRoom> ranks, int32_t blocks) {
  std::vector<std::string> lines;
  std::vector<GpuName> told;
  for (const KvRoom& first : ranks) {
    const auto is_first = [&](const GpuName& gpu) { return is_same_gpu(gpu, first.gpu); };
    if (std::any_of(told.begin(), told.end(), is_first)) continue;
    told.push_back(first.gpu);
    int64_t weights = 0, activations = 0;
    for (const KvRoom& rank : ranks) {
      if (!is_first(rank.gpu)) continue;
      weights += rank.weight_bytes;
      activations += rank.activation_bytes;
    }
    const DeviceRoom room = room_on(first.gpu, ranks, 1);
    const auto kv = static_cast<int64_t>(room.block_bytes) * blocks;
    const auto total = static_cast<int64_t>(first.total_bytes);
    const int64_t others =
        std::max<int64_t>(static_cast<int64_t>(room.used) - weights - activations, 0);
    const int64_t left = std::max<int64_t>(total - others - weights - activations - kv, 0);
    lines.push_back(cat("memory of ", to_text(first.gpu), ", ", bytes_text(total), ": others ",
                        bytes_text(others), ", weights ", bytes_text(weights),
                        ", activations and rope table ", bytes_text(activations), ", KV cache ",
                        bytes_text(kv), "; left ", bytes_text(left)));
  }
  return lines;
}

}  // namespace shoal
