#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/grpc/byte_methods.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/liveness_probe.h"
#include "server/grpc/dialect.h"
#include "server/grpc/stream_call.h"
#include "server/intake/front_call.h"
#include "server/intake/intake.h"
#include "server/intake/live_request.h"
#include "server/serving/api_keys.h"

namespace shoal {

/// What a GrpcServer has that its services and their calls need.
struct ServiceParts {
  std::shared_ptr<ServingState> state;
  std::shared_ptr<Intake> intake;
  std::shared_ptr<const LivenessProbe> probe;
  std::shared_ptr<Connections> connections;
  std::shared_ptr<const ApiKeys> keys;
};

/// Passes the one request of a call through the intake and the loop, and its output to the client,
/// one message at a time, in the words of one protocol. The intake's and the loop's threads, gRPC's
/// threads and the watchdog for slow readers call it, and its mutex orders them. The intake and the
/// call's reactor share its ownership.
class GenerateStream final : public FrontCall, public std::enable_shared_from_this<GenerateStream> {
 public:
  /// The request is read as bytes, when the intake has room for it.
  using Reactor = ByteReactor;

  /// priority: as in GenerationRequest, if the call's metadata has it.
  GenerateStream(ServiceParts parts, std::shared_ptr<const Dialect> dialect,
                 const grpc::CallbackServerContext& context, std::optional<int64_t> priority);

  /// Enters the intake and returns the reactor, which gRPC owns from then on. If the request is
  /// refused, the call ends with the refusal. context: that of the constructor.
  Reactor* start(grpc::CallbackServerContext* context);

  void read() override;
  uint64_t received() override;
  void work() override;
  void reject(const RefusedRequest& why) override;

  void output_ready() override;
  void drop_if_slow(std::chrono::milliseconds limit) override;

 private:
  using Call = StreamCall<GenerateStream>;
  friend Call;
  void read_done(bool ok);
  void written(bool ok);
  void client_gone();
  void call_done();
  void submit(IncomingRequest incoming);

  // The functions from here to gone_status() require that mutex_ is held. They may call the
  // request, the ServingState and the intake, because these hold no lock of their own while they
  // call a stream.
  void pump();
  void lose_client();
  void finish(const grpc::Status& status);
  void refuse(const RefusedRequest& why);
  void log_end() const;
  grpc::Status gone_status() const;

  const ServiceParts parts_;
  const std::shared_ptr<const Dialect> dialect_;
  const std::optional<int64_t> priority_;
  const std::string peer_;  // as gRPC names it
  const RequestOrigin origin_;
  const RunningClock::time_point begun_ = RunningClock::now();
  std::mutex mutex_;
  Call* call_ = nullptr;            // null before start() and after gRPC is done
  grpc::ByteBuffer request_bytes_;  // gRPC uses it while reading_ is set
  bool reading_ = false;
  std::shared_ptr<LiveRequest> request_;      // null until the request has been read
  bool accepted_ = false;                     // the request; until then its output waits
  std::unique_ptr<CallAnswer> answer_;        // null until the request has been read
  grpc::ByteBuffer response_;                 // gRPC uses it while writing_ is set
  std::chrono::nanoseconds write_started_{};  // by the probe's clock
  bool writing_ = false;                      // a write is outstanding
  bool finished_ = false;                     // Finish has been called, so nothing more is written
  grpc::StatusCode code_ = grpc::StatusCode::OK;  // of the call, once it is over
  bool gone_ = false;  // the client has cancelled, its deadline has passed,
                       // or the connection is broken
  bool slow_ = false;
};

/// The deadline that the client set.
Deadline deadline_of(const grpc::CallbackServerContext& context);

}  // namespace shoal
