#include "models/decoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "models/rope.h"
#include "runtime/memory/populate.h"

namespace shoal {
namespace {

constexpr int64_t kLine = 64;

/// The caller computes fewer rows than this alone, because waking the team would take longer.
constexpr int64_t kRowsWorthSharing = 8;

/// Query rows of one attention task: enough to reuse a KV tile, and few enough to spread the tasks
/// over threads.
constexpr int kAttentionRows = 32;

}  // namespace

/// The address of each activation inside the decoder's single allocation.
struct Decoder::Buffers {
  float* residual;   // [rows, hidden]
  void* activation;  // [rows, stride(hidden)]: normed input of products
  float* cos;        // [rows, head_dim / 2]
  float* sin;
  float* qkv;       // [rows, (q + 2 kv) * head_dim]
  void* attention;  // [rows, stride(q * head_dim)]
  float* partial;   // [contributions, rows, hidden]
  float* sum;       // [rows, hidden]
  float* gate_up;   // [rows, 2 * mlp]
  void* mlp;        // [rows, stride(mlp)]
  int64_t qkv_stride, hidden_stride, attention_stride, mlp_stride;
  int64_t bytes = 0;

  /// Lays the buffers out from base on, or only counts the bytes if base is nullptr.
  Buffers(std::byte* base, const ModelConfig& config, const ShardPlan& plan, Dtype activation_type,
          int64_t rows) {
    const auto take = [&](int64_t elements, int64_t element_bytes) {
      std::byte* at = base == nullptr ? nullptr : base + bytes;
      bytes += (elements * element_bytes + kLine - 1) / kLine * kLine;
      return static_cast<void*>(at);
    };
    const auto floats = [&](int64_t elements) { return static_cast<float*>(take(elements, 4)); };
    const auto wide = static_cast<int64_t>(dtype_bytes(activation_type));
    const int64_t hidden = config.hidden_size, d = config.head_dim,
                  mlp_columns = plan.mlp_columns.size();
    const auto rank = static_cast<size_t>(plan.world.rank);
    const int planes =
        std::max(plan.attention_reduce.contributions[rank], plan.mlp_reduce.contributions[rank]);
    qkv_stride = (plan.q_heads.size() + 2 * plan.kv_heads.size()) * d;
    hidden_stride = activation_stride(hidden);
    attention_stride = activation_stride(plan.q_heads.size() * d);
    mlp_stride = activation_stride(mlp_columns);
    residual = floats(rows * hidden);
    activation = take(rows * hidden_stride, wide);
    cos = floats(rows * d / 2);
    sin = floats(rows * d / 2);
    qkv = floats(rows * qkv_stride);
    attention = take(rows * attention_stride, wide);
    partial = floats(rows * hidden * planes);
    sum = floats(rows * hidden);
    gate_up = floats(rows * 2 * mlp_columns);
    mlp = take(rows * mlp_stride, wide);
  }
};

Decoder::Decoder(const Parts& parts, int max_rows)
    : parts_(parts), max_rows_(max_rows), activation_(activation_dtype(parts.weights.dtype)) {}

Decoder::~Decoder() = default;

int64_t Decoder::activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                  int max_rows) {
  return Buffers(nullptr, config, plan, activation_dtype(dtype), max_rows).bytes;
}

Result<std::unique_ptr<Decoder>> Decoder::create(const Parts& parts, int max_rows) {
  std::unique_ptr<Decoder> decoder(new Decoder(parts, max_rows));
  decoder->inv_freq_ =
      rope_inv_freq(parts.config.rope, parts.config.head_dim, parts.config.max_position_embeddings,
                    &decoder->attention_factor_);
  const int64_t bytes = activation_bytes(parts.config, parts.plan, parts.weights.dtype, max_rows);
  SHOAL_ASSIGN_OR_RETURN(decoder->memory_, AlignedBuffer::allocate(static_cast<size_t>(bytes)));
  const Status touched = populate(decoder->memory_.as<>(), decoder->memory_.bytes());
  if (!touched.ok())
    return touched.while_doing(cat("touch the activations of ", max_rows, " tokens"));
  decoder->buffers_ = std::make_unique<Buffers>(decoder->memory_.as<>(), parts.config, parts.plan,
                                                decoder->activation_, max_rows);
  return decoder;
}

template <typename Body>
void Decoder::over_rows(int64_t rows, const Body& body) {
  if (rows < kRowsWorthSharing) {
    body(int64_t{0}, rows);
  } else {
    parts_.pool.split(rows, body);
  }
}

void Decoder::rotary_angles(const DecoderBatch& batch) {
  const int64_t half = parts_.config.head_dim / 2;
  over_rows(static_cast<int64_t>(batch.positions.size()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      rope_angles(inv_freq_, attention_factor_, batch.positions[static_cast<size_t>(row)],
                  buffers_->cos + row * half, buffers_->sin + row * half);
    }
  });
}

void Decoder::normalize(const float* weight, int64_t rows) {
  const RmsNormArgs args{.x = buffers_->residual,
                         .weight = weight,
                         .eps = parts_.config.rms_norm_eps,
                         .cols = parts_.config.hidden_size,
                         .out = buffers_->activation,
                         .out_dtype = activation_,
                         .out_stride = buffers_->hidden_stride};
  over_rows(rows, [&](int64_t begin, int64_t end) { parts_.kernels.rms_norm(args, begin, end); });
}

Status Decoder::multiply(const PackedMatrix& w, const void* x, int64_t x_stride, int64_t rows,
                         float* y) {
  const MatmulArgs args{.w = &w,
                        .x = x,
                        .x_stride = x_stride,
                        .y = y,
                        .y_stride = w.n(),
                        .plane_stride = rows * w.n()};
  parts_.pool.split(w.panels(), [&](int64_t begin, int64_t end) {
    parts_.kernels.matmul(args, 0, rows, static_cast<int>(begin), static_cast<int>(end));
  });
  return moved();
}

Status Decoder::attend(const DecoderBatch& batch, int window, const KvLayer& cache) {
  const ModelConfig& config = parts_.config;
  struct Task {
    const SequenceRows* sequence;
    int row_begin, row_end, kv_head;
  };
  std::vector<Task> tasks;
  for (const SequenceRows& sequence : batch.sequences) {
    for (int kv_head = 0; kv_head < cache.kv_heads; ++kv_head) {
      for (int row = 0; row < sequence.rows; row += kAttentionRows) {
        tasks.push_back({&sequence, row, std::min(row + kAttentionRows, sequence.rows), kv_head});
      }
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&](int) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();) {
      const AttentionArgs args{.q = buffers_->qkv,
                               .q_stride = buffers_->qkv_stride,
                               .heads = parts_.plan.q_heads.size(),
                               .head_begin = parts_.plan.head_begin.data(),
                               .cache = cache,
                               .sequence = *tasks[i].sequence,
                               .window = window,
                               .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
                               .out = buffers_->attention,
                               .out_dtype = activation_,
                               .out_stride = buffers_->attention_stride};
      parts_.kernels.attention(args, tasks[i].row_begin, tasks[i].row_end, tasks[i].kv_head,
                               tasks[i].kv_head + 1);
    }
  };
  if (tasks.size() == 1) {
    work(0);
  } else {
    parts_.pool.run(work);
  }
  return moved();
}

Status Decoder::reduce_into_residual(const ReducePlan& plan, const std::vector<float>& bias,
                                     int64_t rows) {
  const int hidden = parts_.config.hidden_size;
  SHOAL_RETURN_IF_ERROR(parts_.communicator.all_reduce(plan, buffers_->partial, buffers_->sum,
                                                       static_cast<size_t>(rows * hidden)));
  const ResidualAddArgs args{.residual = buffers_->residual,
                             .sum = buffers_->sum,
                             .bias = bias.empty() ? nullptr : bias.data(),
                             .cols = hidden};
  over_rows(rows,
            [&](int64_t begin, int64_t end) { parts_.kernels.residual_add(args, begin, end); });
  return moved();
}

Status Decoder::attention_block(const DecoderBatch& batch, int layer, const KvLayer& cache) {
  const LayerWeights& weights = parts_.weights.layers[static_cast<size_t>(layer)];
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  normalize(weights.input_norm.data(), rows);
  SHOAL_RETURN_IF_ERROR(
      multiply(weights.qkv, buffers_->activation, buffers_->hidden_stride, rows, buffers_->qkv));
  const auto or_null = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  const QkvArgs args{.qkv = buffers_->qkv,
                     .qkv_stride = buffers_->qkv_stride,
                     .heads = parts_.plan.q_heads.size(),
                     .bias = or_null(weights.qkv_bias),
                     .q_norm = or_null(weights.q_norm),
                     .k_norm = or_null(weights.k_norm),
                     .eps = parts_.config.rms_norm_eps,
                     .cos = buffers_->cos,
                     .sin = buffers_->sin,
                     .cache = cache};
  over_rows(rows, [&](int64_t begin, int64_t end) {
    for (const SequenceRows& sequence : batch.sequences) {
      const int64_t from = std::max<int64_t>(begin - sequence.row_begin, 0);
      const int64_t to = std::min<int64_t>(end - sequence.row_begin, sequence.rows);
      if (from < to)
        parts_.kernels.qkv(args, sequence, static_cast<int>(from), static_cast<int>(to));
    }
  });
  SHOAL_RETURN_IF_ERROR(
      attend(batch, parts_.config.sliding_window[static_cast<size_t>(layer)], cache));
  SHOAL_RETURN_IF_ERROR(multiply(weights.o, buffers_->attention, buffers_->attention_stride, rows,
                                 buffers_->partial));
  return reduce_into_residual(parts_.plan.attention_reduce, weights.o_bias, rows);
}

Status Decoder::mlp_block(int64_t rows, int layer) {
  const LayerWeights& weights = parts_.weights.layers[static_cast<size_t>(layer)];
  if (!parts_.plan.mlp_columns.empty()) {
    normalize(weights.post_attention_norm.data(), rows);
    SHOAL_RETURN_IF_ERROR(multiply(weights.gate_up, buffers_->activation, buffers_->hidden_stride,
                                   rows, buffers_->gate_up));
    const SiluMulArgs args{
        .gate_up = buffers_->gate_up,
        .bias = weights.gate_up_bias.empty() ? nullptr : weights.gate_up_bias.data(),
        .cols = parts_.plan.mlp_columns.size(),
        .out = buffers_->mlp,
        .out_dtype = activation_,
        .out_stride = buffers_->mlp_stride};
    over_rows(rows, [&](int64_t begin, int64_t end) { parts_.kernels.silu_mul(args, begin, end); });
    SHOAL_RETURN_IF_ERROR(
        multiply(weights.down, buffers_->mlp, buffers_->mlp_stride, rows, buffers_->partial));
  }
  return reduce_into_residual(parts_.plan.mlp_reduce, weights.down_bias, rows);
}

Status Decoder::forward(const DecoderBatch& batch, const std::vector<KvLayer>& cache,
                        float* logits) {
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  if (rows == 0 || rows > max_rows_) {
    return Status::error(Code::kInternal,
                         cat("a step of ", rows, " rows; the decoder has room for 1..", max_rows_));
  }
  const int hidden = parts_.config.hidden_size;
  const EmbedArgs embed{.table = parts_.weights.embedding.data,
                        .dtype = parts_.weights.embedding.dtype,
                        .ids = batch.token_ids.data(),
                        .hidden = hidden,
                        .out = buffers_->residual};
  over_rows(rows, [&](int64_t begin, int64_t end) { parts_.kernels.embed(embed, begin, end); });
  rotary_angles(batch);
  for (int layer = 0; layer < parts_.config.num_hidden_layers; ++layer) {
    SHOAL_RETURN_IF_ERROR(attention_block(batch, layer, cache[static_cast<size_t>(layer)]));
    SHOAL_RETURN_IF_ERROR(mlp_block(rows, layer));
  }
  if (batch.logit_rows.empty() || parts_.plan.vocab.empty()) return {};
  // Only the wanted rows go through the last norm and product, so they are first moved to the
  // front, in place. This is safe because they are in ascending order.
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const int64_t row = batch.logit_rows[i];
    if (row != static_cast<int64_t>(i)) {
      std::memcpy(buffers_->residual + static_cast<int64_t>(i) * hidden,
                  buffers_->residual + row * hidden, static_cast<size_t>(hidden) * sizeof(float));
    }
  }
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  normalize(parts_.weights.final_norm.data(), wanted);
  return multiply(parts_.weights.lm_head, buffers_->activation, buffers_->hidden_stride, wanted,
                  logits);
}

}  // namespace shoal
