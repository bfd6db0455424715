#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "models/layers.h"
#include "models/model_config.h"
#include "models/shard_plan.h"
#include "runtime/base/dtype.h"
#include "runtime/device/cuda_ops.h"
#include "runtime/device/device.h"

namespace shoal {

/// The elements of a head in q and in the KV cache of a device (ShoalKvLayer).
constexpr int device_head_elements(int head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// The module's name of a type.
constexpr int32_t device_type(Dtype dtype) {
  return dtype == Dtype::kBf16 ? kShoalBf16 : dtype == Dtype::kF16 ? kShoalF16 : kShoalF32;
}

/// The inputs of one step, as the ops read them (ShoalStepRows). The host fills one of these in
/// pinned memory, and the device has another of the same layout.
struct StepInputs {
  int32_t* token_ids;  ///< [rows]
  int32_t* positions;  ///< [rows]
  int32_t* sequence;   ///< [rows]
  int32_t* first_row;  ///< [sequences]
  int32_t* row_count;  ///< [sequences]
  /// Everything up to here lies in one piece, which begins at token_ids.
  int64_t head_bytes;
  int32_t* block_table;  ///< [sequences][table_stride]
};

/// The addresses of a step's activations inside one allocation of device memory. The inputs of
/// products and of attention have the type of activations, and their rows are padded, so that each
/// begins at a multiple of 16 bytes.
struct DeviceBuffers {
  float* residual;   ///< [rows, hidden]
  std::byte* input;  ///< [rows, hidden_stride]: normed input of products
  float* cos;        ///< [positions, head_dim / 2]
  float* sin;
  float* qkv;             ///< [rows, qkv_columns]
  std::byte* q;           ///< [rows, q_stride]
  std::byte* attention;   ///< [rows, attention_stride]
  float* partial;         ///< [contributions, rows, hidden]
  float* sum;             ///< [rows, hidden]
  float* gate_up;         ///< [rows, 2 * mlp]
  std::byte* mlp;         ///< [rows, mlp_stride]
  float* logits;          ///< [logit rows, vocabulary of this rank]
  ShoalBest* best;        ///< [logit rows]
  ShoalBest* best_parts;  ///< [logit rows, kShoalArgmaxParts]
  float* scratch;         ///< of whichever op runs
  int64_t scratch_floats;
  std::span<float> all_scratch() const { return {scratch, static_cast<size_t>(scratch_floats)}; }
  uint32_t* marks;  ///< [last_mark_of(layers) + 1]: 0, 1, 2, ...
  StepInputs step;
  int64_t hidden_stride, qkv_columns, q_stride, attention_stride, mlp_stride, table_stride;
  int64_t bytes;

  /// Lays the buffers out from base on, or only counts the bytes if base is nullptr.
  DeviceBuffers(std::byte* base, const ModelConfig& config, const ShardPlan& plan,
                Dtype activations, const StepRoom& room, int64_t scratch_floats);

  /// What an op of a step with this many rows and sequences reads.
  ShoalStepRows step_rows(int32_t rows, int32_t sequences) const;
};

/// The same for the host's side, in pinned memory that the device reads and writes.
struct PinnedBuffers {
  StepInputs step;
  uint32_t* mark;  ///< how far the stream is (device_tables.h), which it writes itself
  /// Relaxed: the mark is a number by itself, and nothing else is read because of it.
  uint32_t last_mark() const {
    return std::atomic_ref<uint32_t>(*mark).load(std::memory_order_relaxed);
  }
  /// Sets the mark of a step that begins, and returns it. The stream must be idle.
  uint32_t forget_marks() const {
    std::atomic_ref<uint32_t>(*mark).store(0, std::memory_order_relaxed);
    return 0;
  }
  ShoalBest* best;  ///< [logit rows]
  float* logits;    ///< [logit rows, vocabulary of this rank]
  int64_t bytes;

  PinnedBuffers(std::byte* base, const ShardPlan& plan, const StepRoom& room);
};

/// The bytes of one block of a rank's KV cache, in all layers.
int64_t device_kv_block_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype);

/// INTERNAL: the step has no rows, or more of anything than there is room for.
Status check_room(const DecoderBatch& batch, const StepRoom& room);

/// Writes what the batch asks for to `out`. columns: of this rank's part of the vocabulary.
void take_logits(const DecoderBatch& batch, const PinnedBuffers& from, size_t columns,
                 const StepLogits& out);

/// The number of positions of the batch's longest sequence.
int longest_of(const DecoderBatch& batch);

/// Writes the inputs of a step. Each sequence must fit into table_stride blocks.
void fill_inputs(const DecoderBatch& batch, int64_t table_stride, const StepInputs& inputs);

/// The most rows of a step whose attention is split by chunks of keys, and the most memory for
/// that.
inline constexpr int32_t kMostSplitAttentionRows = 16;
inline constexpr int64_t kMostAttentionScratchFloats = int64_t{16} << 20;

/// The scratch that the ops of a step may need: that of a product whose leaves are folded, and what
/// split attention gets.
int64_t scratch_floats_of(const ModelConfig& config, const ShardPlan& plan, const StepRoom& room);

}  // namespace shoal
