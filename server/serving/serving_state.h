#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/engine_limits.h"
#include "runtime/transport/report.h"
#include "server/serving/generation_request.h"
#include "server/serving/inference_loop.h"
#include "server/serving/refused_request.h"
#include "server/serving/request_book.h"

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

/// The state that all client interfaces share: the served model, and whether requests are accepted.
/// The lock of its book guards it, the Intake and the loop. May be used from any thread. It does
/// not depend on gRPC, so that another interface can share it.
class ServingState {
 public:
  /// served_names: by which clients may name the model; at least one. Answers name the first.
  /// Without a book the lengths of requests are not told apart when they are counted.
  explicit ServingState(std::vector<std::string> served_names,
                        std::shared_ptr<RequestBook> book = std::make_shared<RequestBook>(0));

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
  /// Precondition: the loop has been made with book().
  void set_ready(const ServedModel* model, InferenceLoop* loop, DeploymentInfo deployment);
  /// The server is going to stop. Requests are still accepted, but health says that they should go
  /// elsewhere.
  void set_stopping();
  /// From now on no request is accepted, so the loop only has to finish those that it has. For the
  /// Intake, which rejects those that have not been read.
  void set_draining(const RequestBook::Lock& held);
  bool draining() const;
  bool draining(const RequestBook::Lock& held) const;
  /// Refuses new requests, because the ranks were lost for this reason, or accepts them again (ok).
  /// Returns whether that has changed anything.
  bool set_restarting(const Status& why);

  const std::shared_ptr<RequestBook>& book() const { return book_; }
  const std::string& served_name() const { return served_names_.front(); }
  const std::vector<std::string>& served_names() const { return served_names_; }
  /// A new id at every start, by which a client can see that the server was restarted.
  const std::string& instance_id() const { return instance_id_; }
  /// NOT_FOUND unless `model` is empty or a served name.
  Status check_model(const std::string& model) const;

  /// Why no request at all is accepted now; ok if requests are accepted.
  RefusedRequest refusal(const RequestBook::Lock& held) const;
  /// Checks and tokenizes the request, without the lock, because that takes long, and only if
  /// requests are accepted. If *given_up becomes true, it ends early (kInvalid, CANCELLED).
  Result<ResolvedRequest, RefusedRequest> resolve(
      GenerationRequest request, const std::atomic<bool>* given_up = nullptr) const;
  /// Gives the request to the loop, or returns why not. Precondition: the caller has held the lock
  /// since refusal() was ok.
  Result<const ServedModel*, RefusedRequest> submit(const RequestBook::Lock& held,
                                                    ResolvedRequest request,
                                                    const std::shared_ptr<OpenRequest>& open,
                                                    const std::optional<RequestOrigin>& origin);
  /// The three in one, for a request that the server itself makes. Those of clients come by
  /// LiveRequest::submit().
  Result<const ServedModel*, RefusedRequest> submit(GenerationRequest request,
                                                    const std::shared_ptr<OpenRequest>& open);

  /// Ends the requests that have waited for too long. Call it about once a second.
  void end_late();

 private:
  const std::vector<std::string> served_names_;
  const std::string instance_id_;
  const std::shared_ptr<RequestBook> book_;  // its lock guards the following
  View view_;
};

/// Whether requests are taken, and what keeps them from it.
enum class Readiness { kReady, kLoading, kDraining, kRanksLost, kWaitingForRanks };
Readiness readiness(const ServingState::View& view);
/// "ready", "loading", "draining", "ranks lost", "waiting for ranks".
const char* readiness_name(Readiness readiness);

/// A random id in the form of a version 4 UUID.
std::string make_uuid();

}  // namespace shoal
