#pragma once
#include <deque>
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/grpc/generate_wire.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// Output that the loop has produced and gRPC has not sent yet. A message has at most 256 tokens and
/// is at most about 1 MiB, however long the client has paused, because gRPC's clients refuse
/// messages of more than 4 MiB. Not thread-safe.
class PendingOutput {
 public:
  void add(OutputDelta delta);
  void add(OutputEnd end) { end_ = std::move(end); }

  enum class Next { kNothing, kTokens, kEnd };
  Next next() const;
  /// Write the next event to *response. Precondition: next() is kTokens for write_tokens(), which
  /// also removes what it has written, or kEnd for write_end().
  void write_tokens(const Tokenizer& tokenizer, const TokenDetail& detail,
                    openengine::v1::GenerateResponse* response);
  void write_end(bool draining, openengine::v1::GenerateResponse* response) const;
  /// The status of the call itself. It is OK even if the request failed, because openengine.v1 has
  /// an event for that. But the event has no code for DATA_LOSS, so the call ends with it.
  grpc::Status end_status() const;

 private:
  std::deque<OutputDelta> deltas_;
  std::optional<OutputEnd> end_;
};

/// Passes one Generate request through the loop and its output to the client, one message at a
/// time. The loop's thread, gRPC's threads and the watchdog for slow readers call it, and its mutex
/// orders them. The loop, the ServingState and the call's reactor share its ownership.
class GenerateStream final : public LiveCall, public std::enable_shared_from_this<GenerateStream> {
 public:
  using Reactor = grpc::ServerWriteReactor<openengine::v1::GenerateResponse>;

  GenerateStream(std::shared_ptr<ServingState> state, std::string request_id, TokenDetail detail);

  /// Submits the request and returns the reactor, which gRPC owns from then on. If the request is
  /// refused, the call ends with the refusal.
  Reactor* start(grpc::CallbackServerContext* context, GenerationRequest request);

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;
  void drop_slow_reader(RunningClock::time_point now, std::chrono::milliseconds limit) override;

 private:
  class Call;
  void written(bool ok);
  void client_gone();
  void call_done();

  // The functions from here to gone_status() require that mutex_ is held. They may call the loop
  // and the ServingState, because these hold no lock of their own while they call a stream.
  void pump();
  void lose_client();
  void finish(const grpc::Status& status);
  grpc::Status gone_status() const;

  const std::shared_ptr<ServingState> state_;
  const std::string request_id_;
  const TokenDetail detail_;

  std::mutex mutex_;
  Call* call_ = nullptr;  // null before start() and after gRPC is done
  ServingState::Taken taken_;
  PendingOutput pending_;
  openengine::v1::GenerateResponse response_;  // gRPC uses it while writing_ is set
  RunningClock::time_point write_started_;
  bool writing_ = false;   // a write is outstanding
  bool finished_ = false;  // Finish has been called, so nothing more is written
  // The client has cancelled, its deadline has passed, or the connection is broken.
  bool gone_ = false;
  bool slow_ = false;
};

/// True if the deadline that the client set has passed.
bool deadline_passed(const grpc::CallbackServerContext& context);

}  // namespace shoal
