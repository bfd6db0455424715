#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "server/serving/serving_state.h"

namespace shoal {

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 50051;         ///< 0: a free one
  std::string served_name;  ///< MODEL's last path component
  int slow_reader_ms =
      30'000;  ///< a message that the client does not take for so long ends its request
};

/// The gRPC front: openengine.v1 Inference and Control, grpc.health.v1 and reflection on one port.
/// It listens before the model is loaded: health says NOT_SERVING and Generate UNAVAILABLE until
/// set_ready(). Any thread, but for shutdown().
class GrpcServer {
 public:
  /// UNAVAILABLE: the port is taken; INVALID_ARGUMENT: no such host, or a port outside [0, 65535];
  /// PERMISSION_DENIED: a port below 1024 without the right to it. Each names host and port.
  static Result<std::unique_ptr<GrpcServer>> start(const GrpcServerOptions& options);
  ~GrpcServer();  ///< shutdown() at once

  int port() const;
  /// "127.0.0.1:50051", "[::1]:50051": for the READY line.
  std::string address() const;

  /// Requests are accepted from now on. Both pointers stay valid until shutdown() has returned.
  void set_ready(const ServedModel* model, InferenceLoop* loop, const DeploymentInfo& deployment);

  /// Health NOT_SERVING, new requests UNAVAILABLE; running streams go on.
  void set_draining();

  /// Drains: waits for the running streams until they have ended or the deadline passes (then they
  /// are cancelled), and closes the port. Returns at once when idle. The second call has no effect.
  /// One thread.
  void shutdown(Deadline deadline);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
