#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/transport/report.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"

namespace shoal {

/// What GetServerInfo and GetModelInfo tell about this start, beside the model.
struct DeploymentInfo {
  int32_t tensor_parallel_size = 1;
  int32_t kv_block_tokens = 0;
  int64_t kv_blocks = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  std::string kernels;                                ///< set: reference, avx2, ...
  std::function<TransportReport()> transport_report;  ///< of now: a restart may have changed it
};

enum class ServingPhase { kLoading, kReady, kDraining };

/// One Generate call as the others see it. Any thread.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  /// Ends the generation with reason kCancelled; its client is told so.
  virtual void abort() = 0;
  /// Ends the call if its client has not taken a message for longer than `limit`.
  virtual void drop_slow_reader(Clock::time_point now, std::chrono::milliseconds limit) = 0;
};

/// What the services share: the phase, what is served, and the calls in progress. Any thread. No
/// gRPC here.
class ServingState {
 public:
  explicit ServingState(std::string served_name);

  /// model and loop are set from kReady on and stay valid until the server has been shut down.
  struct View {
    ServingPhase phase = ServingPhase::kLoading;
    const ServedModel* model = nullptr;
    InferenceLoop* loop = nullptr;
    DeploymentInfo deployment;
  };
  View view() const;
  void set_ready(const ServedModel* model, InferenceLoop* loop, DeploymentInfo deployment);
  void set_draining();

  const std::string& served_name() const { return served_name_; }
  /// New at every start: lets a client tell a restarted server from the one it knew.
  const std::string& instance_id() const { return instance_id_; }
  /// NOT_FOUND unless `model` is empty or the served name.
  Status check_model(const std::string& model) const;

  /// Enters a call; it is live until leave(). ALREADY_EXISTS: a live call holds that request id;
  /// UNAVAILABLE: draining.
  Status enter(const std::string& request_id, std::shared_ptr<LiveCall> call);
  /// The request has ended: its id may be used again. Before the client can know of the end.
  void release_id(const std::string& request_id, const LiveCall* call);
  void leave(const std::string& request_id, const LiveCall* call);

  /// Aborts one request: kAborted, kFinished (one of the last few thousand), or kUnknown.
  enum class AbortOutcome { kAborted, kFinished, kUnknown };
  AbortOutcome abort(const std::string& request_id);
  /// Aborts all; how many.
  int abort_all();
  void drop_slow_readers(std::chrono::milliseconds limit);

  /// True: no call is live. False: the deadline came first.
  bool wait_until_idle(Deadline deadline);

 private:
  const std::string served_name_;
  const std::string instance_id_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  View view_;
  std::unordered_map<const LiveCall*, std::shared_ptr<LiveCall>> live_;
  std::unordered_map<std::string, const LiveCall*> by_id_;
  std::deque<std::string> finished_;  // the last ones, oldest first
  std::unordered_set<std::string> finished_set_;
};

/// A random id in the form of a version 4 UUID.
std::string make_uuid();

}  // namespace shoal
