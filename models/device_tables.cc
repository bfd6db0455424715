#include "models/device_tables.h"

#include <algorithm>
#include <vector>

#include "models/rope.h"
#include "runtime/base/cat.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

/// Copies from `from`, which is in the pinned memory `stage`, and waits. The start's own deadline,
/// which the front keeps, ends a wait for a device that hangs. After a failure the device may still
/// read the memory, so it is kept.
Status copy_now(Device& device, void* to, const Device::Memory& stage, const void* from,
                int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(const Device::Event copied, device.make_event());
  Status status = device.copy(to, from, static_cast<size_t>(bytes), stream.get());
  if (status.ok()) status = device.record(copied.get(), stream.get());
  if (status.ok()) status = device.wait(copied.get(), Deadline::infinite(), {});
  if (!status.ok()) keep_for_process(Device::Memory(stage));
  return status;
}

}  // namespace

Status fill_rotary_tables(Device& device, const ModelConfig& config, ThreadPool& pool,
                          int positions, float* cos, float* sin) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  const int64_t half = config.head_dim / 2, row_bytes = half * int64_t{sizeof(float)};
  float factor = 1;
  const std::vector<float> inv_freq =
      rope_inv_freq(config.rope, config.head_dim, config.max_position_embeddings, &factor);
  const int64_t piece = std::min<int64_t>(positions, kPieceBytes / row_bytes);
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory stage,
                         device.allocate_pinned(static_cast<size_t>(2 * piece * row_bytes)));
  auto* const staged_cos = static_cast<float*>(stage.get());
  float* const staged_sin = staged_cos + piece * half;
  for (int64_t from = 0; from < positions; from += piece) {
    const int64_t count = std::min<int64_t>(piece, positions - from);
    pool.split(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        rope_angles(inv_freq, factor, static_cast<int>(from + i), staged_cos + i * half,
                    staged_sin + i * half);
      }
    });
    SHOAL_RETURN_IF_ERROR(
        copy_now(device, cos + from * half, stage, staged_cos, count * row_bytes));
    SHOAL_RETURN_IF_ERROR(
        copy_now(device, sin + from * half, stage, staged_sin, count * row_bytes));
  }
  return {};
}

Status fill_progress_marks(Device& device, int count, uint32_t* marks) {
  const int64_t bytes = count * int64_t{sizeof(uint32_t)};
  SHOAL_ASSIGN_OR_RETURN(const Device::Memory stage,
                         device.allocate_pinned(static_cast<size_t>(bytes)));
  auto* const staged = static_cast<uint32_t*>(stage.get());
  for (int i = 0; i < count; ++i) staged[i] = static_cast<uint32_t>(i);
  return copy_now(device, marks, stage, staged, bytes);
}

std::string part_after(uint32_t mark, int layers) {
  const auto done = static_cast<int>(mark);
  if (done >= last_mark_of(layers)) return "what follows the logits";
  if (done == 4 * layers) return "the logits";
  const int half = done / 2;
  return cat(sums_after(mark, layers) ? "the sum of " : "", "layer ", half / 2,
             half % 2 == 0 ? ", attention" : ", mlp");
}

}  // namespace shoal
