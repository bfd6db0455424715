#include "models/cpu_layers.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "models/rope.h"
#include "runtime/base/counted.h"
#include "runtime/memory/populate.h"

namespace shoal {
namespace {

constexpr int64_t kLine = 64;

/// The caller computes fewer rows than this alone, because waking the team would take longer.
constexpr int64_t kRowsWorthSharing = 8;

/// Query rows of one attention task: enough to reuse a KV tile, and few enough to spread the tasks
/// over threads.
constexpr int kAttentionRows = 32;

const float* or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

/// The address of each activation inside one allocation.
struct CpuLayers::Buffers {
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

CpuLayers::CpuLayers(const Parts& parts, Weights weights)
    : parts_(parts), weights_(std::move(weights)), activation_(activation_dtype(weights_.dtype)) {
  inv_freq_ = rope_inv_freq(parts.config.rope, parts.config.head_dim,
                            parts.config.max_position_embeddings, &attention_factor_);
}

CpuLayers::~CpuLayers() = default;

Result<std::unique_ptr<Layers>> CpuLayers::load(const Parts& parts, const Checkpoint& checkpoint,
                                                Dtype dtype, const LoadCallback& progress) {
  SHOAL_ASSIGN_OR_RETURN(Weights weights, load_weights(checkpoint, parts.config, parts.plan, dtype,
                                                       parts.pool, parts.kernels, progress));
  return std::unique_ptr<Layers>(std::make_unique<CpuLayers>(parts, std::move(weights)));
}

int64_t CpuLayers::activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                    int max_rows) {
  return Buffers(nullptr, config, plan, activation_dtype(dtype), max_rows).bytes;
}

Status CpuLayers::take_memory(const StepRoom& room, Communicator& communicator) {
  communicator_ = &communicator;
  max_rows_ = room.rows;
  const ModelConfig& config = parts_.config;
  const int64_t bytes = activation_bytes(config, parts_.plan, weights_.dtype, max_rows_);
  SHOAL_ASSIGN_OR_RETURN(memory_, AlignedBuffer::allocate(static_cast<size_t>(bytes)));
  const Status touched = populate(memory_.as<>(), memory_.bytes());
  if (!touched.ok())
    return touched.while_doing(cat("touch the activations of ", counted(max_rows_, "token")));
  buffers_ = std::make_unique<Buffers>(memory_.as<>(), config, parts_.plan, activation_, max_rows_);
  return {};
}

Status CpuLayers::take_kv_cache(int32_t blocks) {
  const ModelConfig& config = parts_.config;
  cache_ = {};
  SHOAL_ASSIGN_OR_RETURN(
      cache_, KvCache::allocate(config.num_hidden_layers, blocks, parts_.plan.kv_heads.size(),
                                config.head_dim, weights_.dtype));
  return {};
}

template <typename Body>
void CpuLayers::over_rows(int64_t rows, const Body& body) {
  if (rows < kRowsWorthSharing) {
    body(int64_t{0}, rows);
  } else {
    parts_.pool.split(rows, body);
  }
}

void CpuLayers::rotary_angles() {
  const int64_t half = parts_.config.head_dim / 2;
  over_rows(rows_, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      rope_angles(inv_freq_, attention_factor_, batch_->positions[static_cast<size_t>(row)],
                  buffers_->cos + row * half, buffers_->sin + row * half);
    }
  });
}

void CpuLayers::normalize(const float* weight, int64_t rows) {
  const RmsNormArgs args{.x = buffers_->residual,
                         .weight = weight,
                         .eps = parts_.config.rms_norm_eps,
                         .cols = parts_.config.hidden_size,
                         .out = buffers_->activation,
                         .out_dtype = activation_,
                         .out_stride = buffers_->hidden_stride};
  over_rows(rows, [&](int64_t begin, int64_t end) { parts_.kernels.rms_norm(args, begin, end); });
}

Status CpuLayers::multiply(const PackedMatrix& w, const void* x, int64_t x_stride, int64_t rows,
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

Status CpuLayers::attend(int window, const KvLayer& cache) {
  const ModelConfig& config = parts_.config;
  struct Task {
    const SequenceRows* sequence;
    int row_begin, row_end, kv_head;
  };
  std::vector<Task> tasks;
  for (const SequenceRows& sequence : batch_->sequences) {
    for (int kv_head = 0; kv_head < cache.kv_heads; ++kv_head) {
      for (int row = 0; row < sequence.rows; row += kAttentionRows) {
        tasks.push_back({&sequence, row, std::min(row + kAttentionRows, sequence.rows), kv_head});
      }
    }
  }
  std::atomic<size_t> next{0};  // relaxed: it divides the tasks, and the pool orders their results
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

Status CpuLayers::reduce(int layer, Part part) {
  const bool mlp = part == Part::kMlp;
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const std::vector<float>& bias = mlp ? weights.down_bias : weights.o_bias;
  const int hidden = parts_.config.hidden_size;
  SHOAL_RETURN_IF_ERROR(communicator_->all_reduce(
      mlp ? parts_.plan.mlp_reduce : parts_.plan.attention_reduce, buffers_->partial, buffers_->sum,
      static_cast<size_t>(rows_ * hidden)));
  const ResidualAddArgs args{
      .residual = buffers_->residual, .sum = buffers_->sum, .bias = or_null(bias), .cols = hidden};
  over_rows(rows_,
            [&](int64_t begin, int64_t end) { parts_.kernels.residual_add(args, begin, end); });
  return moved();
}

/// Applies bias, norms and rotation to the product of q, k and v, and writes K and V to the cache.
void CpuLayers::place_keys(const LayerWeights& weights, const KvLayer& cache) {
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
  over_rows(rows_, [&](int64_t begin, int64_t end) {
    for (const SequenceRows& sequence : batch_->sequences) {
      const int64_t from = std::max<int64_t>(begin - sequence.row_begin, 0);
      const int64_t to = std::min<int64_t>(end - sequence.row_begin, sequence.rows);
      if (from < to)
        parts_.kernels.qkv(args, sequence, static_cast<int>(from), static_cast<int>(to));
    }
  });
}

Status CpuLayers::attention(int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const KvLayer& cache = cache_.layers()[static_cast<size_t>(layer)];
  normalize(weights.input_norm.data(), rows_);
  SHOAL_RETURN_IF_ERROR(
      multiply(weights.qkv, buffers_->activation, buffers_->hidden_stride, rows_, buffers_->qkv));
  place_keys(weights, cache);
  SHOAL_RETURN_IF_ERROR(attend(parts_.config.sliding_window[static_cast<size_t>(layer)], cache));
  return multiply(weights.o, buffers_->attention, buffers_->attention_stride, rows_,
                  buffers_->partial);
}

Status CpuLayers::mlp(int layer) {
  if (parts_.plan.mlp_columns.empty()) return {};
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  normalize(weights.post_attention_norm.data(), rows_);
  SHOAL_RETURN_IF_ERROR(multiply(weights.gate_up, buffers_->activation, buffers_->hidden_stride,
                                 rows_, buffers_->gate_up));
  const SiluMulArgs args{.gate_up = buffers_->gate_up,
                         .bias = or_null(weights.gate_up_bias),
                         .cols = parts_.plan.mlp_columns.size(),
                         .out = buffers_->mlp,
                         .out_dtype = activation_,
                         .out_stride = buffers_->mlp_stride};
  over_rows(rows_, [&](int64_t begin, int64_t end) { parts_.kernels.silu_mul(args, begin, end); });
  return multiply(weights.down, buffers_->mlp, buffers_->mlp_stride, rows_, buffers_->partial);
}

Status CpuLayers::begin(const DecoderBatch& batch) {
  rows_ = static_cast<int64_t>(batch.token_ids.size());
  if (rows_ == 0 || rows_ > max_rows_) {
    return Status::error(Code::kInternal,
                         cat("a step of ", rows_, " rows; there is room for 1..", max_rows_));
  }
  batch_ = &batch;
  const EmbedArgs embed{.table = weights_.embedding.data,
                        .dtype = weights_.embedding.dtype,
                        .ids = batch.token_ids.data(),
                        .hidden = parts_.config.hidden_size,
                        .out = buffers_->residual};
  over_rows(rows_, [&](int64_t begin, int64_t end) { parts_.kernels.embed(embed, begin, end); });
  rotary_angles();
  return {};
}

/// Only the wanted rows go through the last norm and product, so they are first moved to the front,
/// in place. This is safe because they are in ascending order.
void CpuLayers::move_rows_to_front() {
  const int64_t hidden = parts_.config.hidden_size;
  for (size_t i = 0; i < batch_->logit_rows.size(); ++i) {
    const int64_t row = batch_->logit_rows[i], to = static_cast<int64_t>(i);
    if (row == to) continue;
    std::memcpy(buffers_->residual + to * hidden, buffers_->residual + row * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
}

Status CpuLayers::logits(const StepLogits& out) {
  const size_t wanted = batch_->logit_rows.size();
  const int columns = parts_.plan.vocab.size();
  std::fill_n(out.best, wanted, ArgmaxResult{-std::numeric_limits<float>::infinity(), -1});
  if (wanted == 0 || parts_.plan.vocab.empty()) return {};
  move_rows_to_front();
  normalize(weights_.final_norm.data(), static_cast<int64_t>(wanted));
  SHOAL_RETURN_IF_ERROR(multiply(weights_.lm_head, buffers_->activation, buffers_->hidden_stride,
                                 static_cast<int64_t>(wanted), out.rows));
  for (size_t i = 0; i < wanted; ++i) {
    if (batch_->whole[i] == 0)
      out.best[i] = parts_.kernels.argmax(out.rows + static_cast<int64_t>(i) * columns, columns);
  }
  return {};
}

}  // namespace shoal
