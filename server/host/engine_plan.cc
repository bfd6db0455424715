#include "server/host/engine_plan.h"

#include <algorithm>
#include <cstdio>

#include "kernels/kernel_table.h"
#include "models/cpu_layers.h"
#include "models/device_buffers.h"
#include "models/device_limits.h"
#include "models/device_weights.h"
#include "models/kv_cache.h"
#include "models/rope.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/quantity.h"
#include "runtime/worker/model_runner.h"

namespace shoal {
namespace {

/// The default KV cache has at least this size if the memory allows it. It is larger only if the
/// weights or the longest request are, because its pages are touched at the start, which takes
/// seconds per GiB on virtual machines.
constexpr int64_t kDefaultKvBytes = int64_t{1} << 30;

/// What a rank may use of its device if none is usable. EngineHost::start() gives the reason, so
/// the plan must not fail first.
constexpr int64_t kNoDeviceBytes = INT64_MAX / 2;

Status bad_flag(std::string what) {
  return Status::error(Code::kInvalidArgument, std::move(what));
}

Status plan_ranks(const EngineFlags& flags, const ModelFiles& model, EnginePlan* plan) {
  plan->world_size = flags.tensor_parallel_size;
  const int limit = leaf_count(model.config.num_attention_heads, plan->model.device);
  const int on_cpu = leaf_count(model.config.num_attention_heads);
  if (plan->world_size > limit) {
    return bad_flag(cat(
        "--tensor-parallel-size must be in [1, ", limit, "] for this model, not ", plan->world_size,
        ": its ", counted(model.config.num_attention_heads, "attention head"),
        model.config.num_attention_heads == 1 ? " is" : " are", " summed in ",
        counted(limit, "part"),
        ", the same for every size so that results are the same bits, and a rank needs one part",
        on_cpu > limit ? cat(" (--device cpu has up to ", on_cpu, ")") : ""));
  }
  return {};
}

Status plan_types(const EngineFlags& flags, const ModelFiles& model, EnginePlan* plan) {
  std::optional<Dtype> asked;
  if (flags.dtype != "auto") asked = parse_dtype(flags.dtype);
  Result<Dtype> dtype = resolve_dtype(model.checkpoint, asked);
  if (!dtype.ok()) return bad_flag(std::string(dtype.status().message()));
  plan->model.dtype = *dtype;
  if (plan->model.device == DeviceKind::kCuda) {
    const Status computed = check_device_model(model.config);
    if (!computed.ok()) return bad_flag(std::string(computed.message()));
  }
  Result<const KernelTable*> kernels = find_kernels(flags.cpu_kernels);
  if (!kernels.ok()) return bad_flag(cat("--cpu-kernels: ", kernels.status().message()));
  plan->model.kernels = (*kernels)->name;
  return {};
}

/// Binds threads if they fill more than half of the CPUs that we may use, because a thread that
/// moves would then share a CPU with another one. With fewer threads, or under a time quota,
/// binding may do harm: other programs may be using the first CPUs.
void plan_threads(const EngineFlags& flags, const HostResources& host, EnginePlan* plan) {
  const int threads =
      flags.threads_per_rank.value_or(std::max(1, host.usable_cpus() / plan->world_size));
  plan->model.threads = threads;
  const size_t all = static_cast<size_t>(threads) * static_cast<size_t>(plan->world_size);
  const bool whole_cpus = host.usable_cpus() == static_cast<int>(host.cpus.size());
  if (whole_cpus && all <= host.cpus.size() && 2 * all > host.cpus.size()) {
    plan->cpus.assign(host.cpus.begin(), host.cpus.begin() + static_cast<std::ptrdiff_t>(all));
  }
}

/// The device on which a rank may use the least decides, because all ranks take equally many
/// blocks.
void plan_device_memory(const HostResources& host, EnginePlan* plan) {
  MemoryEstimate& memory = plan->memory;
  memory.device_bytes = kNoDeviceBytes;
  for (const DevicePart& part : host.devices) {
    const auto share = static_cast<int64_t>(double(part.bytes) * plan->model.device_memory_share);
    const auto taken = static_cast<int64_t>(part.taken_bytes);
    const int64_t left = std::max<int64_t>(share - taken, 0);
    if (left >= memory.device_bytes) continue;
    memory.device_bytes = left;
    memory.device_taken_bytes = taken;
  }
}

/// The bytes of KV cache if the flags do not set them: the largest of kDefaultKvBytes, the weights
/// and the cache of one request of max_model_len, but at most a quarter of the available memory.
uint64_t default_kv_bytes(const MemoryEstimate& memory, int64_t max_model_len) {
  const int64_t longest = blocks_for_tokens(max_model_len) * memory.kv_bytes_per_block;
  const int64_t wanted = std::max({kDefaultKvBytes, memory.weight_bytes, longest});
  return std::min(static_cast<uint64_t>(wanted), memory.available_bytes / 4);
}

/// A context that rope scaling stretches is used beyond max_position_embeddings only if the flag
/// asks for it, because the KV cache of a request at its longest then takes more memory.
Status check_model_len(const EngineFlags& flags, const ModelConfig& config) {
  const int written = config.max_position_embeddings;
  const int limit = stretched_positions(config.rope, written);
  if (!flags.max_model_len || *flags.max_model_len <= limit) return {};
  const std::string why = limit == written
                              ? "the model's max_position_embeddings"
                              : cat("to which rope scaling stretches the model's context");
  return bad_flag(
      cat("--max-model-len must be in [2, ", limit, "], ", why, ", not ", *flags.max_model_len));
}

/// The bytes of KV cache of all ranks if each device gives what its rank's weights and activations
/// leave of its share.
uint64_t device_kv_bytes(const MemoryEstimate& memory) {
  return static_cast<uint64_t>(std::max<int64_t>(memory.device_kv_blocks, 0)) *
         static_cast<uint64_t>(memory.kv_bytes_per_block);
}

std::string text_of(uint64_t bytes) {
  return bytes_text(static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX)));
}

/// What the KV cache may have if the flags do not say it, for messages.
const char* usual_kv_share(const EnginePlan& plan) {
  return plan.model.device == DeviceKind::kCuda
             ? "what --gpu-memory-utilization leaves beside weights and activations"
             : "a quarter of the memory available";
}

/// Where a device's memory goes, for the message that it does not suffice.
std::string device_memory_text(const EnginePlan& plan) {
  const MemoryEstimate& memory = plan.memory;
  return cat(". A rank may use ", bytes_text(memory.device_bytes), " of its GPU",
             memory.device_taken_bytes > 0
                 ? cat(", where others have ", bytes_text(memory.device_taken_bytes))
                 : std::string(),
             "; the rank with the most has ", bytes_text(memory.largest_weight_bytes),
             " of weights and about ", bytes_text(memory.largest_activation_bytes),
             " of activations: use more ranks, or a smaller --max-num-batched-tokens or "
             "--max-model-len",
             plan.model.device_memory_share < 1 ? ", or a larger --gpu-memory-utilization" : "");
}

Status plan_kv_cache(const EngineFlags& flags, const ModelFiles& model, EnginePlan* plan) {
  const bool on_device = plan->model.device == DeviceKind::kCuda;
  const int64_t per_block = plan->memory.kv_bytes_per_block;
  const uint64_t available =
      on_device ? device_kv_bytes(plan->memory) : plan->memory.available_bytes;
  if (flags.kv_cache_memory && *flags.kv_cache_memory > available) {
    return bad_flag(cat("--kv-cache-memory ", text_of(*flags.kv_cache_memory), " is more than the ",
                        text_of(available), " of memory that are available"));
  }
  int64_t max_model_len = flags.max_model_len.value_or(model.config.max_position_embeddings);
  // With room for every sequence at its longest, nothing is ever preempted, so more blocks are
  // useless.
  const int64_t useful = flags.max_num_seqs * blocks_for_tokens(max_model_len);
  const uint64_t budget = flags.kv_cache_memory.value_or(
      on_device ? available : default_kv_bytes(plan->memory, max_model_len));
  const int64_t fitting = static_cast<int64_t>(
      std::min<uint64_t>(budget / static_cast<uint64_t>(per_block), INT32_MAX));
  const int64_t blocks = std::min(fitting, useful);
  if (blocks < (flags.max_model_len ? blocks_for_tokens(max_model_len) : 1)) {
    const int64_t tokens = flags.max_model_len.value_or(kBlockTokens);
    return bad_flag(cat("the KV cache must hold ", counted(tokens, "token"),
                        ", which takes --kv-cache-memory ", blocks_for_tokens(tokens) * per_block,
                        ", but has ", text_of(budget), ", ",
                        flags.kv_cache_memory ? "as --kv-cache-memory says" : usual_kv_share(*plan),
                        flags.max_model_len ? "; raise it, or lower --max-model-len" : "; raise it",
                        on_device ? device_memory_text(*plan) : ""));
  }
  max_model_len = std::min(max_model_len, blocks * kBlockTokens);
  plan->model.limits.kv_blocks = static_cast<int32_t>(blocks);
  plan->model.limits.max_model_len = static_cast<int32_t>(max_model_len);
  // Ranks on devices may find less memory than was planned with. They then take a smaller cache,
  // but not a smaller one than the flags ask for.
  const int64_t least = flags.kv_cache_memory ? blocks
                        : flags.max_model_len ? blocks_for_tokens(max_model_len)
                                              : 1;
  plan->model.least_kv_blocks = static_cast<int32_t>(least);
  return {};
}

/// Which products a library computes decides speed and bits, and nothing else shows it.
void plan_library(const ProductLibrary& library, ModelStart* model) {
  if (!library.is_used()) return;
  const std::string name = cat("cuBLASLt ", library.version, " at ", library.path);
  if (!library_computes(library, model->dtype, model->limits.max_num_batched_tokens))
    return log_info(cat("own kernels compute every product: ", name, " gets those of ",
                        library.least_rows, " rows and more, and none of float16"));
  log_info(cat(name, " computes products of ", library.least_rows, " rows and more"));
  model->library = library;
}

/// What one rank's memory consists of, in bytes.
struct RankBytes {
  int64_t weights = 0;
  int64_t kv_block = 0;     // of one block of the KV cache
  int64_t activations = 0;  // and logits; approximately
};

Result<RankBytes> bytes_of_rank(const ModelConfig& config, const ShardPlan& shard,
                                const ModelStart& model) {
  const EngineLimits& limits = model.limits;
  if (model.device == DeviceKind::kCuda) {
    const StepRoom room{.rows = limits.max_num_batched_tokens,
                        .sequences = limits.max_num_seqs,
                        .positions = std::max(limits.max_model_len, 1),
                        .logit_rows = model.max_logit_rows()};
    SHOAL_ASSIGN_OR_RETURN(const int64_t weights, device_weight_bytes(config, shard, model.dtype));
    return RankBytes{
        weights, device_kv_block_bytes(config, shard, model.dtype),
        device_activation_bytes(config, shard, model.dtype, room) + model.library.workspace_bytes};
  }
  return RankBytes{
      packed_weight_bytes(config, shard, model.dtype),
      KvCache::bytes(config.num_hidden_layers, 1, shard.kv_heads.size(), config.head_dim,
                     model.dtype),
      CpuLayers::activation_bytes(config, shard, model.dtype, limits.max_num_batched_tokens) +
          ModelRunner::logit_bytes(shard, model.max_logit_rows())};
}

}  // namespace

int64_t blocks_for_tokens(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

std::string format_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

void EnginePlan::limit_kv_blocks(int64_t blocks) {
  int32_t& planned = model.limits.kv_blocks;
  planned = static_cast<int32_t>(std::clamp<int64_t>(blocks, 1, planned));
  model.least_kv_blocks = planned;
}

Status EnginePlan::estimate_memory(const ModelConfig& config) {
  MemoryEstimate estimate;
  estimate.available_bytes = memory.available_bytes;
  estimate.device_bytes = memory.device_bytes;
  estimate.device_taken_bytes = memory.device_taken_bytes;
  for (int rank = 0; rank < world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(const ShardPlan shard,
                           make_shard_plan(config, {rank, world_size}, model.device));
    SHOAL_ASSIGN_OR_RETURN(const RankBytes bytes, bytes_of_rank(config, shard, model));
    estimate.weight_bytes += bytes.weights;
    estimate.largest_weight_bytes = std::max(estimate.largest_weight_bytes, bytes.weights);
    estimate.kv_bytes_per_block += bytes.kv_block;
    estimate.activation_bytes += bytes.activations;
    // Rows of logits are copied to pinned memory first, and weights go through two pinned buffers.
    estimate.host_bytes +=
        2 * ModelRunner::logit_bytes(shard, model.max_logit_rows()) + (int64_t{16} << 20);
    estimate.largest_activation_bytes =
        std::max(estimate.largest_activation_bytes, bytes.activations);
    const int64_t left = estimate.device_bytes - bytes.weights - bytes.activations;
    const int64_t blocks = left < 0 ? 0 : left / std::max<int64_t>(bytes.kv_block, 1);
    estimate.device_kv_blocks = std::min(estimate.device_kv_blocks, blocks);
  }
  memory = estimate;
  return {};
}

std::optional<int64_t> EnginePlan::available_bytes() const {
  if (model.device != DeviceKind::kCuda) return static_cast<int64_t>(memory.available_bytes);
  if (memory.device_bytes == kNoDeviceBytes) return std::nullopt;
  return memory.device_bytes;
}

std::string EnginePlan::describe_memory() const {
  const double weights = static_cast<double>(memory.weight_bytes),
               activations = double(memory.activation_bytes);
  const double kv = static_cast<double>(kv_bytes());
  const std::optional<int64_t> there = available_bytes();
  const std::string available =
      !there ? "no usable GPU"
             : cat(format_bytes(double(*there)),
                   model.device == DeviceKind::kCuda ? " of its GPU for each rank" : " available");
  return cat("memory for ", counted(world_size, "rank"), ": weights ", format_bytes(weights),
             " (at most ", format_bytes(double(memory.largest_weight_bytes)), " a rank), KV cache ",
             format_bytes(kv), " (", counted(model.limits.kv_blocks, "block"), " of ", kBlockTokens,
             " tokens), activations and logits about ", format_bytes(activations), "; ",
             format_bytes(weights + kv + activations), " in all, ", available);
}

void log_memory(const EnginePlan& plan) {
  const MemoryEstimate& memory = plan.memory;
  const std::optional<int64_t> available = plan.available_bytes();
  log_info(plan.describe_memory(),
           {{"event", "memory"},
            {"ranks", plan.world_size},
            {"weights_bytes", memory.weight_bytes},
            {"kv_cache_bytes", plan.kv_bytes()},
            {"kv_blocks", plan.model.limits.kv_blocks},
            {"activations_bytes", memory.activation_bytes},
            {"available_bytes", available ? LogValue(*available) : LogValue()}});
}

Result<EnginePlan> plan_engine(const EngineFlags& flags, const ModelFiles& model,
                               const HostResources& host) {
  EnginePlan plan;
  plan.model.config_json = model.config_json;
  plan.model.config_path = cat(model.dir, "/config.json");
  plan.model.checkpoint = model.checkpoint.layout();
  plan.files = model.watched;
  plan.model.limits.max_num_batched_tokens = flags.max_num_batched_tokens;
  plan.model.limits.max_num_seqs = flags.max_num_seqs;
  plan.model.device = flags.transport.device.kind;
  SHOAL_RETURN_IF_ERROR(plan_ranks(flags, model, &plan));
  SHOAL_RETURN_IF_ERROR(plan_types(flags, model, &plan));
  plan_threads(flags, host, &plan);
  plan.memory.available_bytes = host.memory_bytes;
  // A cache whose size the user gives may also have what the utilization would keep free.
  plan.model.device_memory_share = flags.kv_cache_memory ? 1 : flags.gpu_memory_utilization;
  plan_device_memory(host, &plan);
  if (plan.model.device == DeviceKind::kCuda) plan_library(host.library, &plan.model);
  SHOAL_RETURN_IF_ERROR(check_model_len(flags, model.config));
  plan.model.limits.max_model_len =
      flags.max_model_len.value_or(model.config.max_position_embeddings);
  SHOAL_RETURN_IF_ERROR(plan.estimate_memory(model.config));
  SHOAL_RETURN_IF_ERROR(plan_kv_cache(flags, model, &plan));
  return plan;
}

}  // namespace shoal
