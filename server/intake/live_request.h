#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/intake/front_call.h"
#include "server/intake/intake.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// One request of a client, from before it is submitted until its call has left the Intake. Every
/// front uses this class, so a front only translates between it and its protocol. It handles events
/// that can come at the same time: output may come before submit() returns, and the client may go
/// at any moment. The Intake keeps it until its call leaves, and guards it. Thread-safe.
class LiveRequest final : public OpenRequest, public std::enable_shared_from_this<LiveRequest> {
 public:
  /// A request of this call. The intake keeps both until the call leaves it. If the call has left
  /// already, the request is given up.
  static std::shared_ptr<LiveRequest> make(std::shared_ptr<Intake> intake, std::string id,
                                           const std::shared_ptr<FrontCall>& call);

  const std::string& id() const { return id_; }

  /// Accepts the request, or returns why not. It is checked, tokenized and queued, and its output
  /// may come before submit() returns. It has its id until release_id(), or until its call leaves
  /// the intake, where it is counted with what is kept of it. Once give_up() is called, it is not
  /// accepted any more (kInvalid, CANCELLED). Call it at most once.
  struct Accepted {
    const ServedModel* model = nullptr;
    std::vector<int32_t> prompt_ids = {};
  };
  Result<Accepted, RefusedRequest> submit(GenerationRequest request, const RequestOrigin& origin);
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

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;

 private:
  friend Intake;
  LiveRequest(std::shared_ptr<Intake> intake, std::string id);
  void leave(const RequestBook::Lock& held);
  template <typename Change>
  void add(const Change& change);

  const std::shared_ptr<Intake> intake_;
  const std::string id_;
  std::atomic<bool> given_up_ = false;
  // The lock of the book guards the following.
  std::shared_ptr<FrontCall> call_;  // null once it has left
  Output output_;
  size_t bytes_ = 0;  // of output_
};

}  // namespace shoal
