#include "server/grpc/grpc_server.h"

#include <algorithm>
#include <cerrno>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <netdb.h>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/wait.h"
#include "server/grpc/control_service.h"
#include "server/grpc/generate_service.h"
#include "server/grpc/transport_service.h"

namespace shoal {

namespace {

// A prompt of 128k tokens takes about 1 MiB as text or as ids. gRPC's own limit of 4 MiB would
// suffice for it. This one leaves more room, without letting a few clients fill the memory.
constexpr int kMaxReceiveBytes = 16 << 20;

constexpr const char* kHealthNames[] = {"", "openengine.v1.Inference", "openengine.v1.Control"};

/// Logs gRPC's own lines at debug level only, because the caller receives the important errors as a
/// status.
void route_grpc_log(gpr_log_func_args* line) {
  log_debug(cat("grpc: ", line->message));
}

void route_protobuf_log(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log_debug(cat("protobuf: ", text));
}

std::string join_host_port(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? cat(host, ":", port) : cat("[", host, "]:", port);
}

/// Tries to listen on each address as gRPC does. Returns the errno of the first one that fails, or
/// 0 if none fails.
int try_to_listen(const addrinfo* list) {
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const Fd socket(::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, 0));
    const int on = 1;  // as in gRPC, because a port in TIME_WAIT is not busy
    if (socket.valid()) (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const bool listens = socket.valid() &&
                         ::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
                         ::listen(socket.get(), 1) == 0;
    if (!listens && (socket.valid() || entry->ai_next == nullptr)) return errno;
  }
  return 0;
}

Status listen_failure(int error, const std::string& address) {
  const auto failure = [&](Code code, const char* what_to_do) {
    return Status::error(code, cat("cannot listen on ", address, ": ", what_to_do), error);
  };
  switch (error) {
    case EAFNOSUPPORT:
      return failure(Code::kInvalidArgument, "choose a --host that this machine has, as 127.0.0.1");
    case EMFILE:
    case ENFILE:
      return failure(Code::kUnavailable, "raise the limit (ulimit -n)");
    case EACCES:
      return failure(Code::kPermissionDenied, "choose a --grpc-port above 1023");
    case EADDRNOTAVAIL:
      return failure(Code::kInvalidArgument, "--host is no address of this machine");
    default:  // EADDRINUSE, or the port is free again by now
      return failure(
          Code::kUnavailable,
          "the port is in use; stop the other server, or choose another --grpc-port (0 takes a free one)");
  }
}

/// gRPC reports only that it could not listen. This finds the reason by trying the same with a
/// plain socket.
Status explain_listen_failure(const std::string& host, int port) {
  const std::string address = join_host_port(host, port);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
      error != 0)
    return Status::error(Code::kInvalidArgument,
                         cat("cannot listen on ", address, ": ", ::gai_strerror(error),
                             "; --host takes an address or name of this machine"));
  const int error = try_to_listen(list);
  ::freeaddrinfo(list);
  return listen_failure(error, address);
}

void configure(grpc::ServerBuilder* builder) {
  // Otherwise a second server could silently share the port.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Without keepalive, a peer that vanished silently would keep its KV blocks for two hours.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A client that pings during a long prefill must not be cut off with "too many pings".
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder->SetMaxReceiveMessageSize(kMaxReceiveBytes);
  builder->SetMaxSendMessageSize(-1);
}

}  // namespace

struct GrpcServer::Impl {
  GrpcServerOptions options;
  int port = 0;
  std::shared_ptr<ServingState> state;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  std::thread watchdog;

  void set_health(bool serving) const {
    for (const char* name : kHealthNames)
      server->GetHealthCheckService()->SetServingStatus(name, serving);
  }

  /// Looks for clients that do not read, four times in the length of the limit. It wakes more often
  /// than that, because only time in which it can look counts.
  void watch_readers() {
    const std::chrono::milliseconds limit(options.slow_reader_ms);
    std::unique_lock lock(mutex);
    while (!wait_until_ready(wake, lock, Deadline::after_ms(limit.count() / 4),
                             [this] { return stop; })) {
      lock.unlock();
      state->drop_slow_readers(limit);
      lock.lock();
    }
  }
};

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() {
  shutdown(Deadline::after_ms(0));
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(const GrpcServerOptions& options) {
  if (options.port < 0 || options.port > 65535)
    return Status::error(Code::kInvalidArgument,
                         cat("--grpc-port must be in [0, 65535], not ", options.port));
  gpr_set_log_function(route_grpc_log);
  google::protobuf::SetLogHandler(route_protobuf_log);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->state = std::make_shared<ServingState>(options.served_name);
  impl->services.push_back(make_generate_service(impl->state));
  impl->services.push_back(make_control_service(impl->state));
  impl->services.push_back(make_transport_service(impl->state));
  grpc::ServerBuilder builder;
  configure(&builder);
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  builder.AddListeningPort(join_host_port(options.host, options.port),
                           grpc::InsecureServerCredentials(), &impl->port);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0)
    return explain_listen_failure(options.host, options.port);
  impl->set_health(false);
  impl->watchdog = std::thread([raw = impl.get()] { raw->watch_readers(); });
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

int GrpcServer::port() const {
  return impl_->port;
}

std::string GrpcServer::address() const {
  return join_host_port(impl_->options.host, impl_->port);
}

void GrpcServer::set_ready(const ServedModel* model, InferenceLoop* loop,
                           const DeploymentInfo& deployment) {
  impl_->state->set_ready(model, loop, deployment);
  impl_->set_health(impl_->state->view().phase == ServingPhase::kReady);
}

void GrpcServer::set_draining() {
  impl_->state->set_draining();
  impl_->set_health(false);
}

void GrpcServer::shutdown(Deadline deadline) {
  if (!impl_->watchdog.joinable()) return;
  set_draining();
  (void)impl_->state->wait_until_idle(deadline);
  // An open Health.Watch would make Shutdown wait until its deadline. So the wait for our own
  // streams is above, and this deadline is short; Shutdown cancels what is left.
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  impl_->watchdog.join();
}

}  // namespace shoal
