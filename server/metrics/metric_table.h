#pragma once
#include <cstddef>
#include <span>

namespace shoal {

/// Every metric of this server. The order is that of the table and of the text.
enum class Metric {
  // These have the names that vLLM gives them.
  kRequestsRunning,
  kRequestsWaiting,
  kKvCacheUsage,
  kCacheConfig,
  kPromptTokens,
  kGenerationTokens,
  kRequestSuccess,
  kPreemptions,
  kTimeToFirstToken,
  kInterTokenLatency,
  kTimePerOutputToken,
  kRequestLatency,
  kQueueTime,
  kPrefillTime,
  kDecodeTime,
  kRequestPromptTokens,
  kRequestGenerationTokens,
  kIterationTokens,
  // Shoal's own.
  kShmTotal,
  kShmFree,
  kShmReserved,
  kShmNeed,
  kTransport,
  kTransportRefusals,
  kStartPhase,
  kRankUp,
  kCollectiveSeconds,
  kMakesOthersWait,
  kRestarts,
  kRecoveredRequests,
  kStepSeconds,
  kHttpRequests,
  // These describe the front's process. They have the names that the client libraries of Prometheus
  // give them.
  kProcessCpu,
  kProcessStart,
  kProcessResident,
  kProcessVirtual,
  kProcessOpenFds,
  kProcessMaxFds,
};

enum class MetricKind { kCounter, kGauge, kHistogram };

/// Since when a metric has values.
enum class MetricSince {
  kStart,  ///< the server listens
  kReady,  ///< the model is loaded
  kEvent,  ///< the first thing that it counts has happened
};

struct MetricInfo {
  Metric metric;
  const char* name;
  MetricKind kind;
  const char* labels;  ///< their names, with a comma and a blank between them; without a bucket's
  MetricSince since;
  const char* help;
};

/// One entry for each Metric, in their order.
std::span<const MetricInfo> metric_table();

}  // namespace shoal
