#include "models/cuda_layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/args.h"
#include "models/device_buffers.h"
#include "models/device_ops.h"
#include "models/device_shapes.h"
#include "models/device_tables.h"
#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {

struct CudaLayers::Buffers {
  DeviceBuffers device;
  PinnedBuffers pinned;
};

CudaLayers::CudaLayers(const Parts& parts, DeviceWeights weights)
    : parts_(parts), weights_(std::move(weights)), activations_(activation_dtype(weights_.dtype)) {}

/// After a failure an op may still use the memory, and freeing it would wait for the op. So it is
/// kept until the process ends, which is soon.
CudaLayers::~CudaLayers() {
  if (!failed_) return;
  keep_for_process(std::move(memory_));
  keep_for_process(std::move(pinned_));
  keep_for_process(std::move(kv_));
  keep_for_process(std::move(products_));
  keep_for_process(DeviceWeights(weights_));
}

Result<std::unique_ptr<Layers>> CudaLayers::load(const Parts& parts, const Checkpoint& checkpoint,
                                                 Dtype dtype, const LoadCallback& progress) {
  SHOAL_ASSIGN_OR_RETURN(DeviceWeights weights,
                         load_device_weights(checkpoint, parts.config, parts.plan, dtype,
                                             *parts.device, parts.pool, parts.kernels, progress));
  return std::unique_ptr<Layers>(std::make_unique<CudaLayers>(parts, std::move(weights)));
}

Status CudaLayers::open_stream() {
  SHOAL_ASSIGN_OR_RETURN(stream_, parts_.device->make_stream());
  for (Device::Event* const event : {&done_, &pace_[0], &pace_[1]}) {
    SHOAL_ASSIGN_OR_RETURN(*event, parts_.device->make_event());
  }
  return {};
}

Status CudaLayers::take_memory(const StepRoom& room, Communicator& communicator) {
  room_ = room;
  collective_ = communicator.on_devices();
  if (collective_ == nullptr) return Status::error(Code::kInternal, "no sums on devices");
  SHOAL_RETURN_IF_ERROR(open_stream());
  Device& device = *parts_.device;
  const ModelConfig& config = parts_.config;
  const ShardPlan& plan = parts_.plan;
  const int64_t scratch = scratch_floats_of(config, plan, room);
  const int64_t bytes = DeviceBuffers(nullptr, config, plan, activations_, room, scratch).bytes;
  Result<Device::Memory> memory = device.allocate_raw(static_cast<size_t>(bytes));
  if (!memory.ok()) {
    return memory.status().while_doing(
        cat("allocate the activations of a step, ", bytes_text(bytes),
            ", which are fewer with a smaller --max-num-batched-tokens, --max-num-seqs or "
            "--max-model-len"));
  }
  memory_ = std::move(memory).value();
  const int64_t pinned_bytes = PinnedBuffers(nullptr, plan, room).bytes;
  SHOAL_ASSIGN_OR_RETURN(pinned_, device.allocate_pinned(static_cast<size_t>(pinned_bytes)));
  buffers_.reset(new Buffers{DeviceBuffers(static_cast<std::byte*>(memory_.get()), config, plan,
                                           activations_, room, scratch),
                             PinnedBuffers(static_cast<std::byte*>(pinned_.get()), plan, room)});
  attention_.heads = plan.q_heads.size();
  std::copy(plan.head_begin.begin(), plan.head_begin.end(), attention_.head_begin);
  attention_.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const DeviceBuffers& b = buffers_->device;
  SHOAL_ASSIGN_OR_RETURN(products_, products_of_library(parts_.library, device, weights_, b, room));
  SHOAL_RETURN_IF_ERROR(
      fill_rotary_tables(device, config, parts_.pool, room.positions, b.cos, b.sin));
  return fill_progress_marks(device, last_mark_of(config.num_hidden_layers) + 1, b.marks);
}

Status CudaLayers::take_kv_cache(int32_t blocks) {
  kv_ = nullptr;  // first, so that both need not fit
  kv_bytes_ = blocks * device_kv_block_bytes(parts_.config, parts_.plan, weights_.dtype);
  Result<Device::Memory> kv = parts_.device->allocate_raw(static_cast<size_t>(kv_bytes_));
  if (!kv.ok()) {
    return kv.status().while_doing(
        cat("allocate the KV cache of ", counted(blocks, "block"), ", ", bytes_text(kv_bytes_)));
  }
  kv_ = std::move(kv).value();
  return {};
}

Result<std::optional<KvRoom>> CudaLayers::kv_room() const {
  SHOAL_ASSIGN_OR_RETURN(const Device::Room room, parts_.device->memory_info());
  // The rank gives back its present cache before it takes another one, so the bytes of the present
  // one count as free.
  return std::optional<KvRoom>(
      {.gpu = parts_.device->name(),
       .free_bytes = room.free_bytes + static_cast<uint64_t>(kv_bytes_),
       .total_bytes = room.total_bytes,
       .block_bytes = device_kv_block_bytes(parts_.config, parts_.plan, weights_.dtype),
       .weight_bytes = weights_.bytes,
       .activation_bytes = buffers_->device.bytes + parts_.library.workspace_bytes});
}

/// Lets the stream write how far it is into the host's memory. Only this is progress: the host may
/// be far ahead, or spin on a device that hangs.
Status CudaLayers::mark_progress(int mark) {
  return parts_.device->copy(buffers_->pinned.mark, buffers_->device.marks + mark, sizeof(uint32_t),
                             stream_.get());
}

/// Whether the stream has completed another part since this was last asked.
bool CudaLayers::has_moved() {
  const uint32_t mark = buffers_->pinned.last_mark();
  return std::exchange(seen_, mark) != mark;
}

Status CudaLayers::wait(void* event) {
  const auto look = [this]() -> Status {
    SHOAL_RETURN_IF_ERROR(collective_->check());
    seen_ = buffers_->pinned.last_mark();
    return show_wait();
  };
  SHOAL_RETURN_IF_ERROR(
      parts_.device->wait(event, Deadline::after_ms(parts_.collective_timeout_ms), look));
  // Check again, because a kernel that has given up a peer ends like any other.
  return collective_->check();
}

/// Waits until the stream has done everything.
Status CudaLayers::wait_for_all() {
  SHOAL_RETURN_IF_ERROR(parts_.device->record(done_.get(), stream_.get()));
  SHOAL_RETURN_IF_ERROR(wait(done_.get()));
  failed_ = false;
  return {};
}

ShoalStepRows CudaLayers::step_rows() const {
  return buffers_->device.step_rows(rows_, static_cast<int32_t>(batch_->sequences.size()));
}

ShoalKvLayer CudaLayers::cache_of(int layer) const {
  const int64_t layer_bytes = kv_bytes_ / parts_.config.num_hidden_layers;
  auto* const data = static_cast<std::byte*>(kv_.get()) + layer * layer_bytes;
  return {data, device_type(weights_.dtype), parts_.plan.kv_heads.size(), parts_.config.head_dim};
}

/// Copies what the step is told to the device. finish() has waited for the last step, so nothing
/// reads the pinned memory any more.
Status CudaLayers::send_step(const DecoderBatch& batch) {
  const StepInputs& host = buffers_->pinned.step;
  const DeviceBuffers& device = buffers_->device;
  fill_inputs(batch, device.table_stride, host);
  SHOAL_RETURN_IF_ERROR(parts_.device->copy(device.step.token_ids, host.token_ids,
                                            static_cast<size_t>(host.head_bytes), stream_.get()));
  const auto entries = static_cast<int64_t>(batch.sequences.size()) * device.table_stride;
  return parts_.device->copy(device.step.block_table, host.block_table,
                             static_cast<size_t>(entries) * sizeof(int32_t), stream_.get());
}

Status CudaLayers::begin(const DecoderBatch& batch) {
  SHOAL_RETURN_IF_ERROR(check_room(batch, room_));
  longest_ = longest_of(batch);
  batch_ = &batch;
  rows_ = static_cast<int32_t>(batch.token_ids.size());
  failed_ = true;  // until finish() has seen the end of the step
  launched_ = parts_.device->module().launches();
  seen_ = buffers_->pinned.forget_marks();
  SHOAL_RETURN_IF_ERROR(show_wait());
  SHOAL_RETURN_IF_ERROR(send_step(batch));
  const ShoalEmbed embed = embed_args(weights_, parts_.config, buffers_->device, rows_);
  SHOAL_RETURN_IF_ERROR(
      parts_.device->enqueue(parts_.device->module().embed, embed, stream_.get(), "embed"));
  return normalize(weights_.layers.front().input_norm, 0, 0, rows_);
}

Status CudaLayers::normalize(const DeviceVector& weight, int64_t from_row, int64_t to_row,
                             int32_t rows) {
  const DeviceBuffers& b = buffers_->device;
  const int hidden = parts_.config.hidden_size;
  const ShoalRmsNorm args{
      .type = device_type(activations_),
      .rows = rows,
      .cols = hidden,
      .eps = parts_.config.rms_norm_eps,
      .x = b.residual + from_row * hidden,
      .weight = weight.get(),
      .out = b.input + to_row * b.hidden_stride * static_cast<int64_t>(dtype_bytes(activations_)),
      .out_stride = b.hidden_stride};
  return parts_.device->enqueue(parts_.device->module().rms_norm, args, stream_.get(), "rms_norm");
}

Status CudaLayers::multiply(const DeviceMatrix& w, const void* x, int64_t x_stride, int32_t rows,
                            float* y) {
  if (products_ != nullptr) {
    const bool is_last = y == buffers_->device.logits;
    const LibraryProducts::Call call{
        &w, x, x_stride, rows, is_last ? static_cast<int32_t>(room_.logit_rows) : room_.rows, y};
    if (products_->computes(call)) return products_->multiply(call, stream_.get());
  }
  const ShoalProduct args =
      product_args(w, weights_.dtype, buffers_->device.all_scratch(), x, x_stride, rows, y);
  return parts_.device->enqueue(parts_.device->module().product, args, stream_.get(), "product");
}

ShoalAttention CudaLayers::attention_of(int layer) const {
  const DeviceBuffers& b = buffers_->device;
  ShoalAttention args = attention_;
  args.step = step_rows();
  args.cache = cache_of(layer);
  args.window = parts_.config.sliding_window[static_cast<size_t>(layer)];
  args.q = b.q;
  args.q_stride = b.q_stride;
  args.out = b.attention;
  args.out_stride = b.attention_stride;
  return args;
}

/// If a step has few rows, the chunks of keys get thread blocks of their own, because otherwise
/// most of the device would be idle.
Status CudaLayers::attend(int layer) {
  const DeviceBuffers& b = buffers_->device;
  const ShoalCudaModule& module = parts_.device->module();
  ShoalAttention args = attention_of(layer);
  const int chunks = (longest_ + kShoalChunkTokens - 1) / kShoalChunkTokens;
  const int64_t scratch =
      module.attention_scratch_floats(rows_, args.heads, parts_.config.head_dim, chunks);
  if (rows_ <= kMostSplitAttentionRows && chunks > 1 && scratch <= b.scratch_floats) {
    args.split_chunks = chunks;
    args.scratch = b.scratch;
    args.scratch_floats = b.scratch_floats;
  }
  return parts_.device->enqueue(module.attention, args, stream_.get(), "attention");
}

Status CudaLayers::attention(int layer) {
  const auto& weights = weights_.layers[static_cast<size_t>(layer)];
  const DeviceBuffers& b = buffers_->device;
  SHOAL_RETURN_IF_ERROR(keep_pace(layer));
  SHOAL_RETURN_IF_ERROR(multiply(weights.qkv, b.input, b.hidden_stride, rows_, b.qkv));
  ShoalQkv args = qkv_args(weights, parts_.config, b);
  args.step = step_rows();
  args.cache = cache_of(layer);
  args.heads = parts_.plan.q_heads.size();
  args.positions = room_.positions;
  SHOAL_RETURN_IF_ERROR(
      parts_.device->enqueue(parts_.device->module().qkv, args, stream_.get(), "qkv"));
  SHOAL_RETURN_IF_ERROR(attend(layer));
  return multiply(weights.o, b.attention, b.attention_stride, rows_, contributions());
}

Status CudaLayers::mlp(int layer) {
  const int columns = parts_.plan.mlp_columns.size();
  if (columns == 0) return {};
  const auto& weights = weights_.layers[static_cast<size_t>(layer)];
  const DeviceBuffers& b = buffers_->device;
  SHOAL_RETURN_IF_ERROR(multiply(weights.gate_up, b.input, b.hidden_stride, rows_, b.gate_up));
  const ShoalSiluMul args = silu_mul_args(weights, activations_, b, columns, rows_);
  SHOAL_RETURN_IF_ERROR(
      parts_.device->enqueue(parts_.device->module().silu_mul, args, stream_.get(), "silu_mul"));
  return multiply(weights.down, b.mlp, b.mlp_stride, rows_, contributions());
}

/// Whether the sums of a row-parallel product's leaves are folded where they are added to the rows.
/// This is so if no other rank waits for the fold, and up to the number of rows at which the
/// product may fold by itself, or a library may compute it.
bool CudaLayers::is_unfolded() const {
  return is_alone() && rows_ <= kShoalMostUnfoldedRows;
}

/// Where a row-parallel product leaves what reduce() adds. nullptr: in scratch, unfolded.
float* CudaLayers::contributions() const {
  return is_unfolded() ? nullptr : buffers_->device.partial;
}

/// Adds the sum to the rows, and normalizes them. A lone rank's contribution is the whole sum.
Status CudaLayers::reduce(int layer, Part part) {
  const DeviceBuffers& b = buffers_->device;
  const int half = 2 * layer + (part == Part::kMlp ? 1 : 0);
  ShoalAddNorm args = add_norm_args(weights_, parts_.config, b, layer, part, is_unfolded());
  args.progress = buffers_->pinned.mark;
  args.rows = rows_;
  if (!is_unfolded()) {
    if (!is_alone()) SHOAL_RETURN_IF_ERROR(mark_progress(mark_before_sum(half)));
    float* const sum = is_alone() ? b.partial : b.sum;
    SHOAL_RETURN_IF_ERROR(collective_->enqueue_all_reduce(
        part == Part::kMlp ? parts_.plan.mlp_reduce : parts_.plan.attention_reduce, b.partial, sum,
        static_cast<size_t>(rows_) * static_cast<size_t>(args.cols), stream_.get(),
        Deadline::after_ms(parts_.collective_timeout_ms)));
    args.sums = sum;
  }
  SHOAL_RETURN_IF_ERROR(
      parts_.device->enqueue(parts_.device->module().add_norm, args, stream_.get(), "add_norm"));
  return has_moved() ? show_wait() : Status();
}

/// Every layers_ahead layers it waits until the device has come to the one layers_ahead before.
Status CudaLayers::keep_pace(int layer) {
  if (layer % parts_.layers_ahead != 0 || layer == 0) return {};
  const int turn = layer / parts_.layers_ahead;
  SHOAL_RETURN_IF_ERROR(parts_.device->record(pace_[turn % 2].get(), stream_.get()));
  return turn < 2 ? Status() : wait(pace_[(turn + 1) % 2].get());
}

/// Only the wanted rows go through the last norm and product. Wanted rows that follow each other
/// are normalized together, and the results are written to the front of the products' input.
Status CudaLayers::normalize_logit_rows() {
  const std::vector<int32_t>& wanted = batch_->logit_rows;
  for (size_t from = 0, to = 0; from < wanted.size(); from = to) {
    for (to = from + 1; to < wanted.size() && wanted[to] == wanted[to - 1] + 1;) ++to;
    SHOAL_RETURN_IF_ERROR(normalize(weights_.final_norm, wanted[from], static_cast<int64_t>(from),
                                    static_cast<int32_t>(to - from)));
  }
  return {};
}

Status CudaLayers::logits(const StepLogits& out) {
  out_ = out;
  const auto wanted = static_cast<int32_t>(batch_->logit_rows.size());
  if (wanted == 0 || parts_.plan.vocab.empty()) return {};
  const DeviceBuffers& b = buffers_->device;
  const ShoalCudaModule& module = parts_.device->module();
  SHOAL_RETURN_IF_ERROR(normalize_logit_rows());
  SHOAL_RETURN_IF_ERROR(multiply(weights_.lm_head, b.input, b.hidden_stride, wanted, b.logits));
  const int columns = parts_.plan.vocab.size();
  const ShoalArgmax args{.rows = wanted,
                         .cols = columns,
                         .logits = b.logits,
                         .stride = columns,
                         .scratch = b.best_parts,
                         .best = b.best};
  SHOAL_RETURN_IF_ERROR(parts_.device->enqueue(module.argmax, args, stream_.get(), "argmax"));
  return fetch_logits();
}

/// Copies to the host what the batch asks for: the rows that are wanted whole, and the greatest
/// logits.
Status CudaLayers::fetch_logits() {
  const DeviceBuffers& from = buffers_->device;
  const PinnedBuffers& to = buffers_->pinned;
  const size_t wanted = batch_->whole.size();
  const auto columns = static_cast<size_t>(parts_.plan.vocab.size());
  for (size_t row = 0; row < wanted; ++row) {
    if (batch_->whole[row] == 0) continue;
    size_t end = row + 1;
    while (end < wanted && batch_->whole[end] != 0) ++end;
    SHOAL_RETURN_IF_ERROR(
        parts_.device->copy(to.logits + row * columns, from.logits + row * columns,
                            (end - row) * columns * sizeof(float), stream_.get()));
    row = end;
  }
  return parts_.device->copy(to.best, from.best, wanted * sizeof(ShoalBest), stream_.get());
}

/// The inputs of the step before are still on the device, and what is written is nobody's result.
/// o is launched beside qkv, because only its product merges leaves, which decides the shapes.
Status CudaLayers::launch_shapes() {
  const auto& weights = weights_.layers.front();
  const DeviceBuffers& b = buffers_->device;
  failed_ = true;  // until all have run
  const auto multiply_in_all = [&](const DeviceMatrix& w, const void* x, int64_t stride, float* y) {
    const ShoalProduct args = product_args(w, weights_.dtype, b.all_scratch(), x, stride, rows_, y);
    return enqueue_product_shapes(*parts_.device, args, stream_.get());
  };
  SHOAL_RETURN_IF_ERROR(multiply_in_all(weights.qkv, b.input, b.hidden_stride, b.qkv));
  SHOAL_RETURN_IF_ERROR(
      enqueue_attention_ways(*parts_.device, attention_of(0), b.all_scratch(), stream_.get()));
  SHOAL_RETURN_IF_ERROR(multiply_in_all(weights.o, b.attention, b.attention_stride, b.partial));
  const ShoalAddNorm norm = add_norm_args(weights_, parts_.config, b, 0, Part::kAttention, false);
  SHOAL_RETURN_IF_ERROR(enqueue_folded_norm(*parts_.device, norm, rows_, stream_.get()));
  if (products_ != nullptr)
    SHOAL_RETURN_IF_ERROR(products_->launch_all(weights_, b, room_, stream_.get()));
  SHOAL_RETURN_IF_ERROR(wait_for_all());
  return moved();
}

Status CudaLayers::finish() {
  SHOAL_RETURN_IF_ERROR(mark_progress(last_mark_of(parts_.config.num_hidden_layers)));
  SHOAL_RETURN_IF_ERROR(wait_for_all());
  log_debug(cat("a step of ", counted(rows_, "row"), " took ",
                parts_.device->module().launches() - launched_, " launches of own kernels"));
  take_logits(*batch_, buffers_->pinned, static_cast<size_t>(parts_.plan.vocab.size()), out_);
  return moved();
}

}  // namespace shoal
