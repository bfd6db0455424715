#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/serving/front_call.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// One request of a client, from before it is submitted until its call is over. Every front uses
/// this class, so a front only translates between it and its protocol. It handles events that can
/// come at the same time: output may come before submit() returns, and the client may go at any
/// moment. Thread-safe.
class LiveRequest final : public LiveCall, public std::enable_shared_from_this<LiveRequest> {
 public:
  /// The call that the request belongs to is kept alive until leave().
  LiveRequest(std::shared_ptr<ServingState> state, std::string id, std::shared_ptr<FrontCall> call);

  const std::string& id() const { return id_; }

  /// ServingState::submit() under this id. Tokenizing ends early once give_up() is called. Call it
  /// at most once.
  Result<ServingState::Accepted, RefusedRequest> submit(GenerationRequest request,
                                                        const RequestOrigin& origin);
  /// Nobody waits for the answer any more: the request is cancelled, whether it is submitted
  /// already or not.
  void give_up();
  bool given_up() const { return given_up_; }

  /// The output that has come since the last call of take().
  struct Output {
    std::vector<OutputDelta> deltas;
    std::optional<OutputEnd> end;  ///< nothing comes after it
  };
  Output take();
  /// About how many bytes wait to be taken.
  size_t untaken_bytes() const;

  /// Frees the id. Call it before the client can learn of the end, because the client may use the
  /// id again at once.
  void release_id();
  /// The call is over, and may be destroyed inside. This does not cancel the request: call
  /// give_up() first if it may not have ended.
  void leave();

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;
  void drop_slow_reader(std::chrono::milliseconds limit) override;

 private:
  std::shared_ptr<FrontCall> call() const;

  const std::shared_ptr<ServingState> state_;
  const std::string id_;
  std::atomic<bool> given_up_ = false;
  mutable std::mutex mutex_;
  std::shared_ptr<FrontCall> call_;  // null after leave()
  InferenceLoop* loop_ = nullptr;    // null until the request is accepted
  uint64_t loop_id_ = 0;
  bool left_ = false;
  Output output_;
  size_t bytes_ = 0;  // of output_
};

}  // namespace shoal
