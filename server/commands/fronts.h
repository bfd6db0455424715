#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "server/cli/flags.h"
#include "server/commands/secret_files.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/metrics/metrics.h"

namespace shoal {

/// The names under which clients can ask for the model: those that the flags give, or `model` if
/// the flags give none.
std::vector<std::string> served_names(const ServeFlags& flags, const std::string& model);

/// Warns if the server is in a container, and only what shares the container's network can reach
/// it. container: that of HostFacts.
void warn_if_closed(const ServeFlags& flags, const std::string& container);

/// The two ways in, HTTP and gRPC. They share the queue, the intake and the keys, so that each of
/// them sees the same server. May be called from any thread, except for shutdown().
class Fronts {
 public:
  /// Listens on both ports. served_name: used if no flag gives one. ranks: how many must always
  /// have descriptors left to be started again. metrics: must outlive the fronts. Errors: those of
  /// both servers, and those of SecretFiles::open().
  static Result<std::unique_ptr<Fronts>> start(const ServeFlags& flags,
                                               const std::string& served_name, int ranks,
                                               Metrics& metrics);

  /// "grpc=127.0.0.1:50051 http=127.0.0.1:8000", for the READY line. Then comes the health port, if
  /// there is one, and " tls=1" if the first two speak TLS.
  std::string addresses() const;

  /// Tells a person at a terminal how to ask this server, if neither a key nor TLS makes that
  /// longer than a line. flags: those of start().
  void say_how_to_ask(const HttpFlags& flags) const;

  void set_ready(const ServedModel* model, InferenceLoop* loop, const DeploymentInfo& deployment);
  bool set_restarting(const Status& why) { return grpc_->set_restarting(why); }
  void set_stopping() { grpc_->set_stopping(); }
  void set_draining() { grpc_->set_draining(); }

  /// Looks soon whether keys and certificates have changed. May be called from any thread; does not
  /// block.
  void look_at_secrets() { secrets_->look_now(); }

  /// Takes no new calls, and waits until those that run have been told of their end or the deadline
  /// has passed.
  void shutdown(Deadline deadline);
  /// False if threads of a front have not answered for long.
  bool alive() const { return grpc_->alive(); }
  /// What a shutdown may be waiting for. Does not block.
  std::string open_work() const { return grpc_->open_work(); }

 private:
  Fronts() = default;
  Status start_http(const ServeFlags& flags, HttpParts parts, Metrics& metrics,
                    int max_connections);

  std::shared_ptr<Intake> intake_;  // of both fronts
  std::unique_ptr<SecretFiles> secrets_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HttpServer> http_;    // null with --port -1
  std::unique_ptr<HttpServer> health_;  // null without --health-port
};

}  // namespace shoal
