#pragma once
#include <atomic>
#include <deque>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/grpc/generate_wire.h"
#include "server/grpc/incoming_request.h"
#include "server/grpc/intake.h"
#include "server/grpc/pulse.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// Output that the loop has produced and gRPC has not sent yet. A message has at most 256 tokens
/// and is at most about 1 MiB, however long the client has paused, because gRPC's clients refuse
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
  /// Why the request was turned out of the queue before anything was generated; otherwise nullptr.
  const RefusedRequest* refused() const;

 private:
  std::deque<OutputDelta> deltas_;
  std::optional<OutputEnd> end_;
};

/// What every GenerateStream uses.
struct StreamParts {
  std::shared_ptr<ServingState> state;
  std::shared_ptr<Intake> intake;
  std::shared_ptr<const Pulse> pulse;
};

/// Passes one Generate request through the intake and the loop, and its output to the client, one
/// message at a time. The intake's and the loop's threads, gRPC's threads and the watchdog for slow
/// readers call it, and its mutex orders them. The intake, the loop, the ServingState and the
/// call's reactor share its ownership.
class GenerateStream final : public LiveCall,
                             public Intake::Guest,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  /// The request is read as bytes, when the intake has room for it.
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, openengine::v1::GenerateResponse>;

  explicit GenerateStream(StreamParts parts) : parts_(std::move(parts)) {}

  /// Enters the intake and returns the reactor, which gRPC owns from then on. If the request is
  /// refused, the call ends with the refusal. priority: as in GenerationRequest.
  Reactor* start(grpc::CallbackServerContext* context, int64_t priority);

  void read() override;
  void work() override;
  void turn_away(const RefusedRequest& why) override;

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;
  void drop_slow_reader(std::chrono::milliseconds limit) override;

 private:
  class Call;
  void read_done(bool ok);
  void written(bool ok);
  void client_gone();
  void call_done();
  bool prepare(grpc::ByteBuffer* bytes);
  void submit(IncomingRequest incoming);

  // The functions from here to gone_status() require that mutex_ is held. They may call the loop,
  // the ServingState and the intake, because these hold no lock of their own while they call a
  // stream.
  void pump();
  void lose_client();
  void finish(const grpc::Status& status);
  grpc::Status gone_status() const;

  const StreamParts parts_;
  // The client has cancelled, its deadline has passed, or the connection is broken.
  std::atomic<bool> gone_ = false;

  std::mutex mutex_;
  Call* call_ = nullptr;            // null before start() and after gRPC is done
  bool done_ = false;               // gRPC is done
  grpc::ByteBuffer request_bytes_;  // gRPC uses it while reading_ is set
  bool reading_ = false;
  std::string request_id_;
  TokenDetail detail_;
  int64_t priority_ = 0;
  RequestOrigin origin_;
  const ServedModel* model_ = nullptr;
  ServingState::Taken taken_;
  PendingOutput pending_;
  openengine::v1::GenerateResponse response_;  // gRPC uses it while writing_ is set
  std::chrono::nanoseconds write_started_{};   // by the pulse's clock
  bool writing_ = false;                       // a write is outstanding
  bool finished_ = false;                      // Finish has been called, so nothing more is written
  bool slow_ = false;
};

/// True if the deadline that the client set has passed.
bool deadline_passed(const grpc::CallbackServerContext& context);

}  // namespace shoal
