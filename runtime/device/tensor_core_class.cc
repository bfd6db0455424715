#include "runtime/device/tensor_core_class.h"

#include <cstring>

#include "runtime/base/cat.h"
#include "runtime/device/class_hashes.h"
#include "runtime/device/cuda_ops.h"
#include "runtime/device/judged_tiles.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

constexpr size_t kWordsOfA = judged::kRows * judged::kFactors / 2;
constexpr size_t kWordsOfB = judged::kColumns * judged::kFactors / 2;
constexpr size_t kSums = judged::kRows * judged::kColumns;
/// The phase in which a rank does this has no deadline of its own, and this takes milliseconds.
constexpr int64_t kMostMs = 10'000;

/// Copies the words to the device and back again, with a step of the tensor cores in between, and
/// waits. `memory` is on the device and as large as what is pinned.
Status enqueue_and_wait(Device& device, int32_t type, int count, uint32_t* pinned, void* memory) {
  const size_t tiles = static_cast<size_t>(count);
  const size_t bytes = tiles * (kWordsOfA + kWordsOfB + kSums) * sizeof(uint32_t);
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(const Device::Event done, device.make_event());
  auto* const a = static_cast<uint32_t*>(memory);
  uint32_t* const b = a + tiles * kWordsOfA;
  uint32_t* const sum = b + tiles * kWordsOfB;
  SHOAL_RETURN_IF_ERROR(device.copy(a, pinned, bytes, stream.get()));
  const ShoalTiles args{type, count, a, b, reinterpret_cast<float*>(sum)};
  SHOAL_RETURN_IF_ERROR(
      device.enqueue(device.module().multiply_tiles, args, stream.get(), "multiply_tiles"));
  SHOAL_RETURN_IF_ERROR(device.copy(pinned, sum, tiles * kSums * sizeof(uint32_t), stream.get()));
  SHOAL_RETURN_IF_ERROR(device.record(done.get(), stream.get()));
  return device.wait(done.get(), Deadline::after_ms(kMostMs), {});
}

/// After a failure the device may still use the memory, and freeing it would wait for the device.
Status run(Device& device, int32_t type, int count, const Device::Memory& pinned) {
  const size_t bytes =
      static_cast<size_t>(count) * (kWordsOfA + kWordsOfB + kSums) * sizeof(uint32_t);
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory memory, device.allocate(bytes));
  const Status status =
      enqueue_and_wait(device, type, count, static_cast<uint32_t*>(pinned.get()), memory.get());
  if (status.ok()) return status;
  keep_for_process(Device::Memory(memory));
  keep_for_process(Device::Memory(pinned));
  if (status.code() != Code::kDeadlineExceeded) return status;
  return status
      .while_doing(cat("multiply ", count, " tiles on the tensor cores in ", kMostMs / 1000, " s"))
      .blamed_on(Fault::kSilence);
}

Result<uint64_t> hash_of(Device& device, int32_t type) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<uint32_t> results,
                         multiply_judged_tiles(device, type, 0, kClassTiles));
  uint64_t hash = judged::kEmptyHash;
  for (const uint32_t result : results) {
    const bool is_nan = (result & 0x7fffffff) > 0x7f800000;
    hash = judged::added_to_hash(hash, is_nan ? judged::kOneNan : result);
  }
  return hash;
}

}  // namespace

Result<std::vector<uint32_t>> multiply_judged_tiles(Device& device, int32_t type, int first,
                                                    int count) {
  const auto tiles = static_cast<size_t>(count);
  SHOAL_ASSIGN_OR_RETURN(
      const Device::Memory pinned,
      device.allocate_pinned(tiles * (kWordsOfA + kWordsOfB + kSums) * sizeof(uint32_t)));
  auto* const a = static_cast<uint32_t*>(pinned.get());
  uint32_t* const b = a + tiles * kWordsOfA;
  uint32_t* const sum = b + tiles * kWordsOfB;
  for (size_t i = 0; i < tiles; ++i) {
    const judged::Tile tile = judged::tile_of(first + static_cast<int>(i));
    const judged::Words words =
        type == kShoalBf16 ? judged::bf16_words(tile) : judged::tf32_words(tile);
    std::memcpy(a + i * kWordsOfA, words.a, sizeof words.a);
    std::memcpy(b + i * kWordsOfB, words.b, sizeof words.b);
    std::memcpy(sum + i * kSums, tile.sum, sizeof tile.sum);
  }
  SHOAL_RETURN_IF_ERROR(run(device, type, count, pinned));
  return std::vector<uint32_t>(a, a + tiles * kSums);
}

Result<TensorCoreHashes> hash_tensor_cores(Device& device) {
  TensorCoreHashes hashes;
  SHOAL_ASSIGN_OR_RETURN(hashes.bf16, hash_of(device, kShoalBf16));
  SHOAL_ASSIGN_OR_RETURN(hashes.tf32, hash_of(device, kShoalF16));
  return hashes;
}

TensorCoreClass class_of(const TensorCoreHashes& hashes) {
  if (hashes == kSm80Hashes) return TensorCoreClass::kSm80;
  return hashes == kSm90Hashes ? TensorCoreClass::kSm90 : TensorCoreClass::kUnknown;
}

}  // namespace shoal
