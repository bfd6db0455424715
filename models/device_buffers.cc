#include "models/device_buffers.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "models/device_tables.h"
#include "runtime/base/cat.h"
#include "runtime/base/kv_block.h"

namespace shoal {
namespace {

/// Whole lines of a device's memory, which is more than any op asks for.
constexpr int64_t kAlign = 256;
/// Rows of a product's input are read in pieces of this many elements.
constexpr int64_t kRowAlign = 64;

constexpr int64_t padded_row(int64_t columns) {
  return (columns + kRowAlign - 1) / kRowAlign * kRowAlign;
}

/// Hands out consecutive parts of an allocation.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(int64_t elements) {
    std::byte* const at = base_ == nullptr ? nullptr : base_ + bytes_;
    bytes_ += (elements * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* const base_;
  int64_t bytes_ = 0;
};

int64_t blocks_of(int64_t positions) {
  return (positions + kBlockTokens - 1) / kBlockTokens;
}

StepInputs take_inputs(Layout& layout, const StepRoom& room) {
  StepInputs inputs{};
  const int64_t before = layout.bytes();
  inputs.token_ids = layout.take<int32_t>(room.rows);
  inputs.positions = layout.take<int32_t>(room.rows);
  inputs.sequence = layout.take<int32_t>(room.rows);
  inputs.first_row = layout.take<int32_t>(room.sequences);
  inputs.row_count = layout.take<int32_t>(room.sequences);
  inputs.head_bytes = layout.bytes() - before;
  inputs.block_table = layout.take<int32_t>(room.sequences * blocks_of(room.positions));
  return inputs;
}

}  // namespace

DeviceBuffers::DeviceBuffers(std::byte* base, const ModelConfig& config, const ShardPlan& plan,
                             Dtype activations, const StepRoom& room, int64_t most_scratch) {
  Layout layout(base);
  const int64_t rows = room.rows, hidden = config.hidden_size, d = config.head_dim,
                mlp_columns = plan.mlp_columns.size(), vocab = plan.vocab.size();
  const auto element = static_cast<int64_t>(dtype_bytes(activations));
  const auto rank = static_cast<size_t>(plan.world.rank);
  const int planes =
      std::max(plan.attention_reduce.contributions[rank], plan.mlp_reduce.contributions[rank]);
  hidden_stride = padded_row(hidden);
  qkv_columns = (plan.q_heads.size() + 2 * plan.kv_heads.size()) * d;
  q_stride = padded_row(int64_t{plan.q_heads.size()} * device_head_elements(config.head_dim));
  attention_stride = padded_row(plan.q_heads.size() * d);
  mlp_stride = padded_row(mlp_columns);
  table_stride = blocks_of(room.positions);
  scratch_floats = most_scratch;
  residual = layout.take<float>(rows * hidden);
  input = layout.take<std::byte>(rows * hidden_stride * element);
  cos = layout.take<float>(room.positions * d / 2);
  sin = layout.take<float>(room.positions * d / 2);
  qkv = layout.take<float>(rows * qkv_columns);
  q = layout.take<std::byte>(rows * q_stride * element);
  attention = layout.take<std::byte>(rows * attention_stride * element);
  partial = layout.take<float>(rows * hidden * planes);
  sum = layout.take<float>(rows * hidden);
  gate_up = layout.take<float>(rows * 2 * mlp_columns);
  mlp = layout.take<std::byte>(rows * mlp_stride * element);
  logits = layout.take<float>(room.logit_rows * vocab);
  best = layout.take<ShoalBest>(room.logit_rows);
  best_parts = layout.take<ShoalBest>(room.logit_rows * kShoalArgmaxParts);
  scratch = layout.take<float>(most_scratch);
  marks = layout.take<uint32_t>(last_mark_of(config.num_hidden_layers) + 1);
  step = take_inputs(layout, room);
  bytes = layout.bytes();
}

ShoalStepRows DeviceBuffers::step_rows(int32_t rows, int32_t sequences) const {
  return {.rows = rows,
          .sequences = sequences,
          .position = step.positions,
          .sequence = step.sequence,
          .first_row = step.first_row,
          .row_count = step.row_count,
          .block_table = step.block_table,
          .table_stride = table_stride};
}

PinnedBuffers::PinnedBuffers(std::byte* base, const ShardPlan& plan, const StepRoom& room) {
  Layout layout(base);
  step = take_inputs(layout, room);
  mark = layout.take<uint32_t>(1);
  best = layout.take<ShoalBest>(room.logit_rows);
  logits = layout.take<float>(room.logit_rows * plan.vocab.size());
  bytes = layout.bytes();
}

int64_t device_kv_block_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  return int64_t{config.num_hidden_layers} * plan.kv_heads.size() * 2 * kBlockTokens *
         device_head_elements(config.head_dim) * static_cast<int64_t>(dtype_bytes(dtype));
}

Status check_room(const DecoderBatch& batch, const StepRoom& room) {
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  const auto sequences = static_cast<int64_t>(batch.sequences.size());
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  const int longest = longest_of(batch);
  if (rows > 0 && rows <= room.rows && sequences <= room.sequences && wanted <= room.logit_rows &&
      longest <= room.positions)
    return {};
  return Status::error(
      Code::kInternal,
      cat("a step of ", rows, " rows of ", sequences, " sequences, up to position ", longest,
          ", with ", wanted, " rows of logits; there is room for 1..", room.rows, " of ",
          room.sequences, ", ", room.positions, " and ", room.logit_rows));
}

void take_logits(const DecoderBatch& batch, const PinnedBuffers& from, size_t columns,
                 const StepLogits& out) {
  for (size_t row = 0; row < batch.whole.size(); ++row) {
    if (columns == 0) {
      out.best[row] = {-std::numeric_limits<float>::infinity(), -1};
    } else if (batch.whole[row] == 0) {
      out.best[row] = {from.best[row].value, from.best[row].column};
    } else {
      std::copy_n(from.logits + row * columns, columns, out.rows + row * columns);
    }
  }
}

int longest_of(const DecoderBatch& batch) {
  int longest = 0;
  for (const SequenceRows& rows : batch.sequences)
    longest = std::max(longest, rows.first_position + rows.rows);
  return longest;
}

void fill_inputs(const DecoderBatch& batch, int64_t table_stride, const StepInputs& inputs) {
  std::copy(batch.token_ids.begin(), batch.token_ids.end(), inputs.token_ids);
  std::copy(batch.positions.begin(), batch.positions.end(), inputs.positions);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceRows& rows = batch.sequences[i];
    const int end = rows.first_position + rows.rows;
    std::fill_n(inputs.sequence + rows.row_begin, rows.rows, static_cast<int32_t>(i));
    inputs.first_row[i] = rows.row_begin;
    inputs.row_count[i] = rows.rows;
    std::copy_n(rows.block_table, blocks_of(end),
                inputs.block_table + static_cast<int64_t>(i) * table_stride);
  }
}

int64_t scratch_floats_of(const ModelConfig& config, const ShardPlan& plan, const StepRoom& room) {
  const int64_t product =
      shoal_product_scratch_floats(config.hidden_size, room.rows, kShoalMostLeaves);
  const int64_t chunks = (room.positions + kShoalChunkTokens - 1) / kShoalChunkTokens;
  const int64_t split = int64_t{std::min(room.rows, kMostSplitAttentionRows)} *
                        plan.q_heads.size() * chunks * (device_head_elements(config.head_dim) + 2);
  return std::max(product, std::min(split, kMostAttentionScratchFloats));
}

}  // namespace shoal
