#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "server/http/session.h"
#include "server/net/tls_identity.h"

namespace shoal {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                                   ///< 0: any free port
  const char* port_flag = "--port";                  ///< for messages
  std::string unix_socket;                           ///< a path; empty: listen on host and port
  std::shared_ptr<const TlsIdentity> tls = nullptr;  ///< null: connections are plain
  int max_connections = 1024;
  /// Descriptors that the connections leave free for the ranks and for gRPC.
  int kept_descriptors = 0;
  SessionLimits limits;
  HttpRouting routing;
  /// Called after each call, by the event thread; must not block.
  std::function<void(const CallRecord&)> done;
};

/// The HTTP front: OpenAI's routes, health and metrics on one port. One thread does all that the
/// connections need. What takes longer is done by the intake's threads and the inference loop, so
/// that /health always answers. May be called from any thread, except for shutdown().
class HttpServer {
 public:
  /// UNAVAILABLE: the port or the path is taken; INVALID_ARGUMENT: no such host;
  /// PERMISSION_DENIED: a port below 1024 without the privilege for it; RESOURCE_EXHAUSTED: no
  /// thread, or no descriptor.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options);
  ~HttpServer();  ///< calls shutdown() with a deadline that has passed

  /// "127.0.0.1:8000", or "unix:PATH": for the READY line.
  std::string address() const;

  /// False if the event thread has not run for half a minute. May be called by any thread.
  bool alive() const;

  /// Takes no new connections but those that have come, and no further request but those that are
  /// on their way on a new connection. Does not block. shutdown() begins with it.
  void stop_accepting();
  /// Calls stop_accepting(), waits until the running calls have been answered or the deadline has
  /// passed, and closes everything. A second call has no effect.
  void shutdown(Deadline deadline);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
