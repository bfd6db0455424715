#include "server/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <sys/statvfs.h>

#include "runtime/base/json.h"
#include "runtime/base/kv_block.h"
#include "server/metrics/family_list.h"
#include "server/metrics/process_figures.h"

namespace shoal {
namespace {

/// The paths that HTTP requests are counted by. A name behind kModels counts as kOneModel.
constexpr std::array<std::string_view, 9> kRoutes = {
    "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/version",
    "/health",         "/health/live",         "/metrics",  "/v1/models"};
constexpr std::string_view kModels = "/v1/models/";
constexpr std::string_view kOneModel = "/v1/models/NAME";
constexpr std::string_view kOther = "other";

std::string_view route_of(std::string_view path) {
  const auto known = std::find(kRoutes.begin(), kRoutes.end(), path);
  if (known != kRoutes.end()) return *known;
  return path.starts_with(kModels) ? kOneModel : kOther;
}

void add_load(const EngineLoad& load, const FamilyList::Labels& engine, FamilyList* list) {
  list->add(Metric::kRequestsRunning, load.running, engine);
  list->add(Metric::kRequestsWaiting, load.waiting, engine);
  list->add(Metric::kKvCacheUsage,
            load.total_kv_blocks > 0 ? double{1} * load.used_kv_blocks / load.total_kv_blocks : 0,
            engine);
  list->add(Metric::kPreemptions, static_cast<double>(load.preemptions), engine);
}

void add_requests(const RequestCounts& counts, const FamilyList::Labels& engine, FamilyList* list) {
  list->add(Metric::kPromptTokens, static_cast<double>(counts.prompt_tokens), engine);
  list->add(Metric::kGenerationTokens, static_cast<double>(counts.generation_tokens), engine);
  for (size_t i = 0; i < kRequestEnds; ++i) {
    FamilyList::Labels labels = engine;
    labels.emplace_back("finished_reason", end_name(static_cast<RequestEnd>(i)));
    list->add(Metric::kRequestSuccess, static_cast<double>(counts.ended[i]), labels);
  }
  list->add(Metric::kTimeToFirstToken, counts.time_to_first_token, engine);
  list->add(Metric::kInterTokenLatency, counts.inter_token, engine);
  list->add(Metric::kTimePerOutputToken, counts.per_output_token, engine);
  list->add(Metric::kRequestLatency, counts.whole, engine);
  list->add(Metric::kQueueTime, counts.queue, engine);
  list->add(Metric::kPrefillTime, counts.prefill, engine);
  list->add(Metric::kDecodeTime, counts.decode, engine);
  list->add(Metric::kRequestPromptTokens, counts.prompt_length, engine);
  list->add(Metric::kRequestGenerationTokens, counts.output_length, engine);
  list->add(Metric::kIterationTokens, counts.step_tokens, engine);
  list->add(Metric::kRecoveredRequests, static_cast<double>(counts.recovered));
  list->add(Metric::kStepSeconds, counts.step_seconds);
}

/// Nothing if nothing is known.
void add_waits(const std::optional<GroupWaits>& waits, FamilyList* list) {
  for (size_t rank = 0; waits && rank < waits->for_rank.size(); ++rank)
    list->add(Metric::kMakesOthersWait, waits->for_rank[rank], {{"rank", std::to_string(rank)}});
}

void add_ranks(const std::optional<RanksState>& ranks, int world_size, FamilyList* list) {
  for (int rank = 0; rank < world_size; ++rank)
    list->add(Metric::kRankUp, ranks && ranks->up ? 1 : 0, {{"rank", std::to_string(rank)}});
  list->add(Metric::kRestarts, ranks ? static_cast<double>(ranks->transport.restart_count) : 0);
  if (!ranks) return;
  for (size_t rank = 0; rank < ranks->collective_seconds.size(); ++rank)
    list->add(Metric::kCollectiveSeconds, ranks->collective_seconds[rank],
              {{"rank", std::to_string(rank)}});
  add_waits(ranks->transport.waits, list);
  for (const auto& [phase, seconds] : ranks->start_phases)
    list->add(Metric::kStartPhase, seconds, {{"phase", phase_name(phase)}});
}

/// Nothing if there is no /dev/shm, or one without a limit.
void add_dev_shm(FamilyList* list) {
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) != 0 || shm.f_blocks == 0) return;
  const auto block_bytes = static_cast<double>(shm.f_frsize);
  list->add(Metric::kShmTotal, static_cast<double>(shm.f_blocks) * block_bytes);
  list->add(Metric::kShmFree, static_cast<double>(shm.f_bavail) * block_bytes);
}

void add_transport(const TransportReport& report, FamilyList* list) {
  double reserved = 0;
  for (const ShmNeed& need : report.needs) {
    const auto bytes = static_cast<double>(need.dev_shm_bytes());
    if (need.rung == report.rung) reserved = bytes;
    list->add(Metric::kShmNeed, bytes, {{"rung", need.rung}});
  }
  list->add(Metric::kShmReserved, reserved);
  if (!report.rung.empty() && !report.order.empty())
    list->add(Metric::kTransport, 1,
              {{"rung", report.rung}, {"first_choice", report.order.front()}});
  // After a restart the same rung may have been refused for the same reason once more.
  std::map<std::array<std::string, 3>, int> refusals;
  for (const Refusal& refusal : report.refusals)
    ++refusals[{refusal.rung, phase_name(refusal.phase), fault_name(refusal.fault)}];
  for (const auto& [why, times] : refusals)
    list->add(Metric::kTransportRefusals, times,
              {{"rung", why[0]}, {"phase", why[1]}, {"reason", why[2]}});
}

void add_process(double start_time_s, FamilyList* list) {
  const ProcessFigures figures = read_process_figures();
  const auto add = [list](Metric metric, const std::optional<int64_t>& value) {
    if (value) list->add(metric, static_cast<double>(*value));
  };
  list->add(Metric::kProcessCpu, figures.cpu_s);
  list->add(Metric::kProcessStart, start_time_s);
  add(Metric::kProcessResident, figures.resident_bytes);
  add(Metric::kProcessVirtual, figures.virtual_bytes);
  add(Metric::kProcessOpenFds, figures.open_fds);
  add(Metric::kProcessMaxFds, figures.max_fds);
}

/// The name of a folder may hold any bytes, but one that is not UTF-8 would make the whole text
/// unreadable.
std::string as_utf8(const std::string& name) {
  const Result<Json> read = parse_json(json_text(Json(name)), "the model's name");
  return read.ok() ? read->get<std::string>() : "";
}

}  // namespace

Metrics::Metrics(const MetricsOptions& options)
    : options_{as_utf8(options.model_name), options.limits, options.world_size},
      start_time_s_(process_start_time_s()),
      book_(std::make_shared<RequestBook>(options_.limits.max_model_len)) {}

Metrics::~Metrics() = default;

void Metrics::count_http(std::string_view path, int status) {
  const std::string_view route = route_of(path);
  const std::lock_guard lock(http_mutex_);
  ++http_[{route, status >= 100 && status < 600 ? status : 0}];
}

void Metrics::set_engine(EngineSources sources) {
  const std::lock_guard lock(sources_mutex_);
  sources_ = std::move(sources);
}

std::string Metrics::text() const {
  EngineLoad load;
  std::optional<RanksState> ranks;
  {
    const std::lock_guard lock(sources_mutex_);
    if (sources_.load) load = sources_.load();
    if (sources_.ranks) ranks = sources_.ranks();
  }
  FamilyList list;
  // There is one engine, whose number vLLM would give as 0.
  const FamilyList::Labels engine = {{"model_name", options_.model_name}, {"engine", "0"}};
  add_load(load, engine, &list);
  list.add(Metric::kCacheConfig, 1,
           {{"block_size", std::to_string(kBlockTokens)},
            {"engine", "0"},
            {"num_gpu_blocks",
             std::to_string(ranks ? load.total_kv_blocks : options_.limits.kv_blocks)}});
  add_requests(book_->counts(), engine, &list);
  add_dev_shm(&list);
  if (ranks) add_transport(ranks->transport, &list);
  add_ranks(ranks, options_.world_size, &list);
  {
    const std::lock_guard lock(http_mutex_);
    for (const auto& [key, count] : http_)
      list.add(Metric::kHttpRequests, static_cast<double>(count),
               {{"route", std::string(key.first)}, {"code", std::to_string(key.second)}});
  }
  add_process(start_time_s_, &list);
  return list.text();
}

}  // namespace shoal
