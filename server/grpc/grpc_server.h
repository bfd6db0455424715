#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "server/intake/intake.h"
#include "server/net/tls_identity.h"
#include "server/serving/api_keys.h"
#include "server/serving/serving_state.h"

namespace grpc {
class Service;
}

namespace shoal {

struct ServiceParts;

/// A further protocol on the same port.
struct GrpcFacade {
  const char* service;  ///< its full name, under which health reports it too
  std::unique_ptr<grpc::Service> (*make)(const ServiceParts& parts);
};

struct GrpcServerOptions {
  std::string host = "127.0.0.1";
  int port = 50051;  ///< 0: any free port
  /// What the fronts share; not null. The intake has been made with the state.
  std::shared_ptr<ServingState> state;
  std::shared_ptr<Intake> intake;
  /// The keys that clients must bring; null: none.
  std::shared_ptr<const ApiKeys> keys = nullptr;
  std::vector<GrpcFacade> facades = {};
  std::shared_ptr<const TlsIdentity> tls = nullptr;  ///< null: connections are plain
  int ranks = 1;  ///< how many must always have descriptors left to be started again
  /// If the client does not accept a message for this long, its request is cancelled. Only time in
  /// which gRPC's threads answer counts.
  int slow_reader_ms = 30'000;
};

/// The gRPC front: openengine.v1 Inference and Control, shoal.v1.Transport, the facades,
/// grpc.health.v1 and reflection on one port.
/// It listens before the model is loaded: until set_ready(), health reports NOT_SERVING and
/// Generate fails with UNAVAILABLE. It accepts connections itself and keeps descriptors free for
/// the ranks. May be called from any thread, except for shutdown().
class GrpcServer {
 public:
  /// UNAVAILABLE: the port is taken; INVALID_ARGUMENT: no such host, or a port outside [0, 65535];
  /// PERMISSION_DENIED: a port below 1024 without the privilege for it; RESOURCE_EXHAUSTED: no
  /// thread, or no descriptor. The messages name host and port.
  static Result<std::unique_ptr<GrpcServer>> start(const GrpcServerOptions& options);
  ~GrpcServer();  ///< calls shutdown() with a deadline that has passed

  int port() const;
  /// "127.0.0.1:50051", "[::1]:50051": for the READY line.
  std::string address() const;

  /// Accepts requests from now on. Both pointers must stay valid until shutdown() has returned.
  void set_ready(const ServedModel* model, InferenceLoop* loop, const DeploymentInfo& deployment);

  /// Health reports NOT_SERVING. Requests are still accepted.
  void set_stopping();

  /// Health reports NOT_SERVING, and new requests and those that have not been read fail with
  /// UNAVAILABLE. Running streams continue.
  void set_draining();

  /// Not ok: health reports NOT_SERVING and new requests fail with UNAVAILABLE, because the ranks
  /// were lost for this reason and take long to come back. Running streams wait for them. Returns
  /// whether that has changed.
  bool set_restarting(const Status& why);

  /// Drains, waits until the running streams have ended, cancels those that remain at the deadline,
  /// and closes the port. Returns at once if there are none. A second call has no effect. Must not
  /// be called from two threads at the same time.
  void shutdown(Deadline deadline);
  /// False if gRPC's threads have not answered for half a minute.
  bool alive() const;
  /// What a shutdown may be waiting for: "2 calls, 1 connection". Does not block.
  std::string open_work() const;

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
