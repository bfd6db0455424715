#include "server/metrics/metric_table.h"

namespace shoal {
namespace {

using enum MetricKind;
using enum MetricSince;

constexpr const char* kEngine = "model_name, engine";

// The names, labels and kinds that begin with "vllm:" are those of vLLM
// (vllm/v1/metrics/loggers.py); its client library adds the _total to the names of counters.
// iteration_tokens_total is a histogram there too.
constexpr MetricInfo kTable[] = {
    {Metric::kRequestsRunning, "vllm:num_requests_running", kGauge, kEngine, kStart,
     "Requests that run."},
    {Metric::kRequestsWaiting, "vllm:num_requests_waiting", kGauge, kEngine, kStart,
     "Requests that wait for a place."},
    {Metric::kKvCacheUsage, "vllm:kv_cache_usage_perc", kGauge, kEngine, kStart,
     "KV cache blocks in use; 1 means all."},
    {Metric::kCacheConfig, "vllm:cache_config_info", kGauge, "block_size, engine, num_gpu_blocks",
     kStart, "The KV cache: tokens of a block, and blocks."},
    {Metric::kPromptTokens, "vllm:prompt_tokens_total", kCounter, kEngine, kStart,
     "Tokens of prompts, once they are computed."},
    {Metric::kGenerationTokens, "vllm:generation_tokens_total", kCounter, kEngine, kStart,
     "Generated tokens."},
    {Metric::kRequestSuccess, "vllm:request_success_total", kCounter,
     "model_name, engine, finished_reason", kStart, "Requests that have ended, by why."},
    {Metric::kPreemptions, "vllm:num_preemptions_total", kCounter, kEngine, kStart,
     "How often a request lost its KV cache blocks to another one."},
    {Metric::kTimeToFirstToken, "vllm:time_to_first_token_seconds", kHistogram, kEngine, kStart,
     "From the arrival of a request to its first token."},
    {Metric::kInterTokenLatency, "vllm:inter_token_latency_seconds", kHistogram, kEngine, kStart,
     "From one token of a request to the next."},
    {Metric::kTimePerOutputToken, "vllm:request_time_per_output_token_seconds", kHistogram, kEngine,
     kStart, "The mean time from one token to the next, of each request with two or more."},
    {Metric::kRequestLatency, "vllm:e2e_request_latency_seconds", kHistogram, kEngine, kStart,
     "From the arrival of a request to its end."},
    {Metric::kQueueTime, "vllm:request_queue_time_seconds", kHistogram, kEngine, kStart,
     "How long a request waited for its first step."},
    {Metric::kPrefillTime, "vllm:request_prefill_time_seconds", kHistogram, kEngine, kStart,
     "From the first step of a request to its first token."},
    {Metric::kDecodeTime, "vllm:request_decode_time_seconds", kHistogram, kEngine, kStart,
     "From the first token of a request to its last one."},
    {Metric::kRequestPromptTokens, "vllm:request_prompt_tokens", kHistogram, kEngine, kStart,
     "Tokens of the prompt, of each request."},
    {Metric::kRequestGenerationTokens, "vllm:request_generation_tokens", kHistogram, kEngine,
     kStart, "Generated tokens, of each request."},
    {Metric::kIterationTokens, "vllm:iteration_tokens_total", kHistogram, kEngine, kStart,
     "Tokens that a step computed."},
    {Metric::kShmTotal, "shoal_shm_total_bytes", kGauge, "", kStart, "The size of /dev/shm."},
    {Metric::kShmFree, "shoal_shm_free_bytes", kGauge, "", kStart, "What is free in /dev/shm."},
    {Metric::kShmReserved, "shoal_shm_reserved_bytes", kGauge, "", kReady,
     "What the transport in use has reserved in /dev/shm."},
    {Metric::kShmNeed, "shoal_shm_need_bytes", kGauge, "rung", kReady,
     "What each transport needs in /dev/shm."},
    {Metric::kTransport, "shoal_transport_info", kGauge, "rung, first_choice", kReady,
     "The transport in use, and the one that was to be tried first."},
    {Metric::kTransportRefusals, "shoal_transport_refusals", kGauge, "rung, phase, reason", kEvent,
     "Transports that were refused, each with what it was doing and what is to blame."},
    {Metric::kStartPhase, "shoal_start_phase_seconds", kGauge, "phase", kReady,
     "How long the last start of the ranks was in each of its phases."},
    {Metric::kRankUp, "shoal_rank_up", kGauge, "rank", kStart, "1 if the rank runs, otherwise 0."},
    {Metric::kCollectiveSeconds, "shoal_collective_seconds_total", kCounter, "rank", kReady,
     "How long each rank was in collectives, where it waits for the others and moves bytes."},
    {Metric::kMakesOthersWait, "shoal_makes_others_wait_ratio", kGauge, "rank", kEvent,
     "The share of a step that this rank makes the others wait."},
    {Metric::kRestarts, "shoal_restarts_total", kCounter, "", kStart,
     "How often lost ranks were started again."},
    {Metric::kRecoveredRequests, "shoal_recovered_requests_total", kCounter, "", kStart,
     "How often a request went on after its ranks had been lost."},
    {Metric::kStepSeconds, "shoal_step_seconds", kHistogram, "", kStart,
     "How long a step took, in which all running requests get a token."},
    {Metric::kHttpRequests, "shoal_http_requests_total", kCounter, "route, code", kEvent,
     "HTTP requests that were answered."},
    {Metric::kProcessCpu, "process_cpu_seconds_total", kCounter, "", kStart,
     "Processor time of the front."},
    {Metric::kProcessStart, "process_start_time_seconds", kGauge, "", kStart,
     "When the front was started, in seconds since 1970."},
    {Metric::kProcessResident, "process_resident_memory_bytes", kGauge, "", kStart,
     "Resident memory of the front."},
    {Metric::kProcessVirtual, "process_virtual_memory_bytes", kGauge, "", kStart,
     "Virtual memory of the front."},
    {Metric::kProcessOpenFds, "process_open_fds", kGauge, "", kStart,
     "Descriptors that the front has open."},
    {Metric::kProcessMaxFds, "process_max_fds", kGauge, "", kStart,
     "How many descriptors the front may open."},
};

constexpr bool in_order() {
  size_t next = 0;
  for (const MetricInfo& info : kTable) {
    if (info.metric != static_cast<Metric>(next++)) return false;
  }
  return next == static_cast<size_t>(Metric::kProcessMaxFds) + 1;
}
static_assert(in_order(), "the table must have every metric, in the order of the enum");

}  // namespace

std::span<const MetricInfo> metric_table() {
  return kTable;
}

}  // namespace shoal
