#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/engine/engine_limits.h"
#include "runtime/engine/request.h"
#include "runtime/transport/report.h"
#include "server/serving/request_book.h"

namespace shoal {

/// The ranks as metrics show them.
struct RanksState {
  bool up = false;  ///< they run, so that none of them is lost
  TransportReport transport;
  PhaseSeconds start_phases = {};  ///< of the last start
  /// How long each rank has been in collectives, by rank.
  std::vector<double> collective_seconds = {};
};

/// What a running engine is asked when somebody reads the metrics. Called from the thread of the
/// reader; neither function may block for long.
struct EngineSources {
  std::function<EngineLoad()> load;
  std::function<RanksState()> ranks;
};

struct MetricsOptions {
  /// As it is served: the value of the label model_name. Bytes that are not UTF-8 become U+FFFD.
  std::string model_name;
  EngineLimits limits;
  int world_size = 1;  ///< ranks
};

/// All metrics of this server (docs/metrics.md lists them), from its start on: before the engine
/// runs, no request has been counted and no rank is up. Every label's value comes from this program
/// or from its operator, and none from a client. May be used from any thread.
class Metrics {
 public:
  explicit Metrics(const MetricsOptions& options);
  ~Metrics();

  /// The Content-Type of text().
  static constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";
  /// What a GET of /metrics answers: Prometheus' text format 0.0.4. Takes well under a millisecond
  /// on an idle machine and waits for no step. What cannot be read just now, because no descriptor
  /// is free or /proc is not mounted, is left out.
  std::string text() const;

  /// Counts an answered HTTP request. path: the path of the URL, without the query. A path that
  /// this server does not serve counts as "other". status: the status that was sent. A number
  /// outside 100 to 599 counts as 0.
  void count_http(std::string_view path, int status);

  /// Where requests and steps are counted. It is also the lock that all who change requests share.
  const std::shared_ptr<RequestBook>& book() const { return book_; }

 private:
  friend class MeasuredEngine;
  void set_engine(EngineSources sources);

  using HttpRequests = std::map<std::pair<std::string_view, int>, int64_t>;

  const MetricsOptions options_;
  const double start_time_s_;
  const std::shared_ptr<RequestBook> book_;
  mutable std::mutex sources_mutex_;  // held while sources are called
  EngineSources sources_;
  mutable std::mutex http_mutex_;
  HttpRequests http_;
};

/// An engine that runs. As long as this object lives, the metrics show what its sources say. After
/// that no source is called.
class MeasuredEngine {
 public:
  MeasuredEngine(Metrics& metrics, EngineSources sources) : metrics_(metrics) {
    metrics_.set_engine(std::move(sources));
  }
  ~MeasuredEngine() { metrics_.set_engine({}); }
  MeasuredEngine(const MeasuredEngine&) = delete;
  MeasuredEngine& operator=(const MeasuredEngine&) = delete;

 private:
  Metrics& metrics_;
};

}  // namespace shoal
