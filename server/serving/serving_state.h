#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/engine_limits.h"
#include "runtime/transport/report.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"
#include "server/serving/refused_request.h"

namespace shoal {

/// What the Control and Transport services report about this deployment, besides the model.
struct DeploymentInfo {
  int32_t tensor_parallel_size = 1;
  int32_t kv_block_tokens = 0;
  EngineLimits limits;
  bool priorities = false;  ///< whether the priorities of requests count
  std::string kernels;      ///< the kernel set: reference, avx2, ...
  std::string arithmetic;   ///< the fingerprint that every kernel set shares
  std::string gpus;         ///< EngineHost::gpus; empty: the ranks compute on the CPU
  /// Changes exactly when the bits of answers may change: system_fingerprint of OpenAI's API.
  std::string fingerprint;
  /// Returns the current report, which a restart may change.
  std::function<TransportReport()> transport_report;
};

enum class ServingPhase { kLoading, kReady, kDraining };

/// The refusal for everything that needs the model, as long as it is not loaded.
RefusedRequest model_is_loading();

/// One client's stream, as ServingState sees it. May be called from any thread.
class LiveCall : public OutputSink {
 public:
  /// Ends the call if its client has not taken a message for longer than `limit`.
  virtual void drop_slow_reader(std::chrono::milliseconds limit) = 0;
};

/// The state that all client interfaces share: the served model, the calls in progress, and whether
/// requests are accepted. May be used from any thread. It does not depend on gRPC, so that another
/// interface can share it.
class ServingState {
 public:
  /// served_names: by which clients may name the model; at least one. Answers name the first.
  explicit ServingState(std::vector<std::string> served_names);

  /// model and loop are set from kReady on and stay valid until the server has been shut down.
  struct View {
    ServingPhase phase = ServingPhase::kLoading;
    bool stopping = false;  ///< a stop was asked for; requests may still be accepted for a while
    /// Why the ranks are being started again: requests that run are held, and new ones refused. ok:
    /// they run, or will soon.
    Status restarting;
    int64_t started_s = 0;  ///< when the server was started, in seconds since 1970
    const ServedModel* model = nullptr;
    InferenceLoop* loop = nullptr;
    DeploymentInfo deployment;
  };
  View view() const;
  void set_ready(const ServedModel* model, InferenceLoop* loop, DeploymentInfo deployment);
  /// The server is going to stop. Requests are still accepted, but health says that they should go
  /// elsewhere.
  void set_stopping();
  /// After this has returned, no request is accepted, so the loop only has to finish those that it
  /// has.
  void set_draining();
  bool draining() const;
  /// Refuses new requests, because the ranks were lost for this reason, or accepts them again (ok).
  /// Returns whether that has changed anything.
  bool set_restarting(const Status& why);

  const std::string& served_name() const { return served_names_.front(); }
  const std::vector<std::string>& served_names() const { return served_names_; }
  /// A new id at every start, by which a client can see that the server was restarted.
  const std::string& instance_id() const { return instance_id_; }
  /// NOT_FOUND unless `model` is empty or a served name.
  Status check_model(const std::string& model) const;

  /// A request that the loop has accepted. Until it has ended, loop->cancel(id) ends it early.
  struct Accepted {
    const ServedModel* model = nullptr;
    InferenceLoop* loop = nullptr;
    uint64_t id = 0;
    size_t bytes = 0;  ///< about what is kept of the request until it ends
    std::vector<int32_t> prompt_ids = {};
  };
  /// Accepts a request, or returns why not. This function decides whether requests are accepted at
  /// all, and Admission which of them. The request is checked, tokenized and queued. Its output
  /// goes to `call`, possibly before submit() returns. The call is live under this request id until
  /// leave(). Nothing is kept of a request that was refused. Once *given_up is true, nobody waits
  /// for the answer any more, and tokenizing ends (kInvalid, CANCELLED).
  Result<Accepted, RefusedRequest> submit(const std::string& request_id, GenerationRequest request,
                                          std::shared_ptr<LiveCall> call,
                                          const RequestOrigin& origin,
                                          const std::atomic<bool>* given_up = nullptr);
  /// The same for a request that the server itself makes. It has no request id, and
  /// wait_until_idle() does not wait for it.
  Result<Accepted, RefusedRequest> submit(GenerationRequest request,
                                          std::shared_ptr<OutputSink> sink);

  /// Frees the id of a request that has ended for use by another. Call it before the client can
  /// learn of the end, because the client may then reuse the id at once.
  void release_id(const std::string& request_id, const LiveCall* call);
  /// Removes a call that is over. No effect if its request was not accepted.
  void leave(const std::string& request_id, const LiveCall* call);

  /// Ends the running request that has this id, and returns kAborted. Its client receives the
  /// reason kCancelled. Returns kFinished if the request, or an earlier one with the same id, has
  /// already ended by itself. Returns kUnknown if none of the last few thousand requests had this
  /// id.
  enum class AbortOutcome { kAborted, kFinished, kUnknown };
  AbortOutcome abort(const std::string& request_id);
  /// Aborts all requests and returns how many were ended by it.
  int abort_all();
  void drop_slow_readers(std::chrono::milliseconds limit);
  /// Ends the requests that have waited for too long. Call it about once a second.
  void end_late();

  /// Returns true when no call is live any more, or false at the deadline.
  bool wait_until_idle(Deadline deadline);

 private:
  struct Live {
    std::shared_ptr<LiveCall> call;
    uint64_t loop_id = 0;
  };
  RefusedRequest refusal() const;
  Result<ResolvedRequest, RefusedRequest> resolve(GenerationRequest request,
                                                  const std::atomic<bool>* given_up) const;
  Result<Accepted, RefusedRequest> queue(ResolvedRequest request, std::shared_ptr<OutputSink> sink,
                                         const std::optional<RequestOrigin>& origin);

  const std::vector<std::string> served_names_;
  const std::string instance_id_;
  // May be held when the loop's mutex is locked, never the other way round.
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  View view_;
  std::unordered_map<const LiveCall*, Live> live_;
  std::unordered_map<std::string, const LiveCall*> by_id_;
  std::deque<std::string> finished_;  // the ids that ended last, oldest first
  std::unordered_set<std::string> finished_set_;
};

/// Whether requests are taken, and what keeps them from it.
enum class Readiness { kReady, kLoading, kDraining, kRanksLost, kWaitingForRanks };
Readiness readiness(const ServingState::View& view);
/// "ready", "loading", "draining", "ranks lost", "waiting for ranks".
const char* readiness_name(Readiness readiness);

/// A random id in the form of a version 4 UUID.
std::string make_uuid();

}  // namespace shoal
