#include "server/grpc/grpc_server.h"

#include <algorithm>
#include <atomic>
#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <malloc.h>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/base/fd.h"
#include "runtime/base/last_words.h"
#include "runtime/base/log.h"
#include "runtime/base/process_memory.h"
#include "server/grpc/connections/acceptor.h"
#include "server/grpc/connections/call_watch.h"
#include "server/grpc/connections/connections.h"
#include "server/grpc/connections/liveness_probe.h"
#include "server/grpc/services.h"
#include "server/grpc/tls_credentials.h"
#include "server/intake/intake.h"
#include "server/net/listen.h"

namespace shoal {

namespace {

/// What gRPC may hold for all connections together: what has arrived and has not been read, and
/// what is read. A stream that is not read holds at most kUnreadBytes. Long before this is reached,
/// Intake makes requests wait.
constexpr size_t kGrpcBytes = size_t{512} << 20;
constexpr int kUnreadBytes = 64 << 10;
/// The most calls on one connection at once.
constexpr int kMaxStreams = 4096;
/// gRPC's threads that do not answer for this long hang.
constexpr std::chrono::seconds kSilentFront{30};

constexpr const char* kHealthNames[] = {"", "openengine.v1.Inference", "openengine.v1.Control"};
/// It serves as long as gRPC answers: a server that loads, drains or waits for its ranks is alive.
constexpr const char* kLivenessName = "liveness";

/// How long a shutdown waits for calls that come or that gRPC answers itself: an open Health.Watch
/// makes it wait for all of this. gRPC cancels then, and their clients hear of it within kToldMs,
/// unless they do not read.
constexpr int kCallsMs = 500, kToldMs = 200;

/// How often unused memory is given back to the system, if there is more than this of it.
constexpr std::chrono::seconds kBetweenTrims{5};
constexpr int64_t kKeptFree = int64_t{16} << 20;

/// For TLS: a client that has not finished the handshake, and the start of HTTP/2 in it, is closed.
constexpr int kHandshakeMs = 10'000;

/// True while the server is being built. What is wrong then becomes a Status of ours.
std::atomic<bool> g_building = false;

/// What gRPC calls an error in these sources is what a client did wrong, in its handshake, in its
/// headers, or by compressing.
bool is_about_client(std::string_view file) {
  return file.ends_with("/ssl_transport_security.cc") ||
         file.ends_with("/security_handshaker.cc") || file.ends_with("/hpack_parser.cc") ||
         file.ends_with("/surface/call.cc");
}

/// gRPC's own lines go to debug level, apart from errors. An error is also kept for the case that
/// it is gRPC's last word before abort().
void route_grpc_log(gpr_log_func_args* line) {
  const bool error = line->severity == GPR_LOG_SEVERITY_ERROR && !is_about_client(line->file);
  if (error) remember_library_error(line->message);
  log_line(error && !g_building ? LogLevel::kError : LogLevel::kDebug,
           cat("grpc: ", line->message));
}

void route_protobuf_log(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log_debug(cat("protobuf: ", text));
}

/// The descriptors that the connections of clients must leave free, so that the ranks can be
/// started again. While they are started, the front has a listener, the control channel and the
/// pidfd of each rank (runtime/transport/rungs/tcp_rung.cc). The fourth descriptor per rank is for
/// a channel of the next group that was not made ahead (stock_channels), and the rest for what is
/// open for a moment: the ends that a rank inherits, files of /proc and /sys, the model's files.
constexpr int64_t kept_descriptors(int ranks) {
  return 16 + 4 * static_cast<int64_t>(ranks);
}

/// gRPC's own service of reflection cannot ask for a key, so that a server with keys has none.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& plugin) { return plugin->name() == "proto_server_reflection"; });
  }
};

void configure(const grpc::ResourceQuota& quota, const GrpcServerOptions& options,
               grpc::ServerBuilder* builder) {
  if (options.tls) builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  if (options.keys->any()) builder->SetOption(std::make_unique<WithoutReflection>());
  // Without keepalive, a peer that vanished silently would keep its KV blocks for two hours.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A client that pings during a long prefill must not be cut off with "too many pings".
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  // Without the next two settings, gRPC would take in from each request everything that the network
  // can carry in a round trip, before anyone reads the request. A request that is being read still
  // comes at full speed.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnreadBytes);
  // A compressed request would be inflated before anyone looks at its size.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  // A call costs memory even while nothing of it is read. Clients hold back those beyond this.
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(static_cast<int>(kMaxRequestBytes));
  builder->SetMaxSendMessageSize(-1);
}

/// Lets the builder's server take connections from our own acceptor, whose calls `connections`
/// hears of. Returns what the acceptor does with a client.
Acceptor::HandOver take_connections_of_our_own(
    grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials,
    const std::vector<GrpcFacade>& facades, const std::shared_ptr<Connections>& connections) {
  using Builder = grpc::ServerBuilder::experimental_type;
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> watches;
  std::vector<std::string> services;
  for (const GrpcFacade& facade : facades) services.emplace_back(facade.service);
  watches.push_back(make_call_watch(connections, services));
  builder->experimental().SetInterceptorCreators(std::move(watches));
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> server =
      builder->experimental().AddExternalConnectionAcceptor(
          Builder::ExternalConnectionType::FROM_FD, credentials);
  return [server](Fd client, int listener) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = client.release();  // gRPC closes it
    server->HandleNewConnection(&connection);
  };
}

}  // namespace

struct GrpcServer::Impl {
  /// While a quota lives, gRPC's library stays up. One that is dropped before the server is built
  /// would shut the library down again, which hangs if its threads could not be started.
  grpc::ResourceQuota quota{"shoal"};
  GrpcServerOptions options;
  int port = 0;
  std::shared_ptr<LivenessProbe> probe;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::shared_ptr<Connections> connections;
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;
  std::mutex mutex;
  std::condition_variable wake;
  enum class Phase { kServing, kEnding, kOver } phase = Phase::kServing;
  std::thread watchdog;
  const int64_t unused_at_start = unused_bytes();

  void set_options(const GrpcServerOptions& given) {
    options = given;
    if (!options.keys) options.keys = std::make_shared<ApiKeys>();
    credentials =
        options.tls ? make_tls_credentials(options.tls) : grpc::InsecureServerCredentials();
  }

  void make_services() {
    const ServiceParts parts{options.state, options.intake, probe, connections, options.keys};
    services.push_back(make_generate_service(parts));
    services.push_back(make_control_service(parts));
    services.push_back(make_transport_service(parts));
    for (const GrpcFacade& facade : options.facades) services.push_back(facade.make(parts));
  }

  void tell_health() const {
    const bool serving = readiness(options.state->view()) == Readiness::kReady;
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    for (const char* name : kHealthNames) health->SetServingStatus(name, serving);
    for (const GrpcFacade& facade : options.facades)
      health->SetServingStatus(facade.service, serving);
  }

  /// Looks for clients that send without end or do not read, and for requests that wait for too
  /// long, as long as it serves.
  void watch_clients() {
    const std::chrono::milliseconds limit(options.slow_reader_ms);
    const std::chrono::milliseconds tick = std::min(limit / 8, std::chrono::milliseconds(1000));
    std::chrono::milliseconds pause{0};
    Clock::time_point next = Clock::now() + tick, next_trim = next + kBetweenTrims;
    std::unique_lock lock(mutex);
    const auto ends = [this] { return phase != Phase::kServing; };
    while (!wake.wait_for(lock, std::min(pause, tick), ends)) {
      lock.unlock();
      pause = connections->close_endless();
      options.intake->reject_late(RunningClock::now());
      if (Clock::now() >= next) {
        probe->probe(2 * tick);
        options.intake->drop_slow_readers(limit);
        options.state->end_late();
        if (Clock::now() >= next_trim) {
          give_memory_back();
          next_trim = Clock::now() + kBetweenTrims;
        }
        next = Clock::now() + tick;
      }
      lock.lock();
    }
  }

  /// The library keeps what large requests have taken, in pieces between what is still in use. If
  /// they still are when it gives memory back, it gives little, and is asked again next time.
  void give_memory_back() const {
    if (unused_bytes() > unused_at_start + kKeptFree) malloc_trim(0);
  }
  /// How many bytes of this process's private resident memory the C library does not use now. The
  /// library's own count of free memory would not do, because it includes memory that was given
  /// back to the kernel.
  static int64_t unused_bytes() {
    const struct mallinfo2 heap = mallinfo2();
    const std::optional<ProcessMemory> memory = read_process_memory();
    if (!memory) return static_cast<int64_t>(heap.fordblks);
    const auto in_use = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
    return memory->resident_bytes - memory->shared_bytes - in_use;
  }

  /// gRPC cannot end a call as long as its connection takes no bytes, so that its Shutdown would
  /// wait for a client that does not read. For a write that is blocked a thread of gRPC's waits up
  /// to 10 s, also after the connection has been closed, and the end of the library would wait for
  /// it. So the library stays until the process ends.
  void close_unread() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::milliseconds(kCallsMs + kToldMs),
                          [this] { return phase == Phase::kOver; })) {
      if (const int closed = connections->close_all(); closed > 0)
        log_warning(cat("gRPC calls are still open ", kCallsMs + kToldMs,
                        " ms after the shutdown began, because clients do not read; closed ",
                        counted(closed, "connection")),
                    {{"event", "grpc_unread"}, {"connections", int64_t{closed}}});
      grpc_init();  // without its grpc_shutdown()
    }
  }

  void enter(Phase next) {
    {
      const std::lock_guard lock(mutex);
      phase = next;
    }
    wake.notify_all();
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
  SHOAL_ASSIGN_OR_RETURN(Listeners listeners, listen_on(options.host, options.port, "--grpc-port"));
  auto impl = std::make_unique<Impl>();
  impl->set_options(options);
  impl->port = listeners.port;
  impl->connections = std::make_shared<Connections>(kept_descriptors(options.ranks),
                                                    options.intake->budget_bytes());
  impl->probe = std::make_shared<LivenessProbe>();
  impl->make_services();
  grpc::ServerBuilder builder;
  configure(impl->quota.Resize(kGrpcBytes), impl->options, &builder);
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  Acceptor::HandOver hand_over =
      take_connections_of_our_own(&builder, impl->credentials, options.facades, impl->connections);
  g_building = true;
  impl->server = builder.BuildAndStart();
  g_building = false;
  if (impl->server == nullptr)
    return Status::error(Code::kUnavailable, "gRPC's server did not start");
  SHOAL_ASSIGN_OR_RETURN(impl->acceptor, Acceptor::start(std::move(listeners.sockets),
                                                         impl->connections, std::move(hand_over)));
  impl->tell_health();
  impl->server->GetHealthCheckService()->SetServingStatus(kLivenessName, true);
  impl->probe->start(*impl->server);
  impl->watchdog = std::thread([raw = impl.get()] {
    raw->watch_clients();
    raw->close_unread();
  });
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
  impl_->options.state->set_ready(model, loop, deployment);
  impl_->tell_health();
}

bool GrpcServer::set_restarting(const Status& why) {
  const bool changed = impl_->options.state->set_restarting(why);
  if (changed) impl_->tell_health();
  return changed;
}

void GrpcServer::set_stopping() {
  impl_->options.state->set_stopping();
  impl_->tell_health();
}

bool GrpcServer::alive() const {
  return impl_->probe->silent_for() < kSilentFront;
}

void GrpcServer::set_draining() {
  impl_->options.intake->drain();
  impl_->tell_health();
}

std::string GrpcServer::open_work() const {
  return impl_->connections->describe();
}

void GrpcServer::shutdown(Deadline deadline) {
  if (!impl_->watchdog.joinable()) return;
  set_draining();
  // What is open after this is no call of ours, or has its end and is not written yet, perhaps
  // because its client does not read: Shutdown cancels it.
  (void)impl_->options.intake->wait_until_empty(deadline);
  impl_->acceptor.reset();
  impl_->enter(Impl::Phase::kEnding);
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(kCallsMs));
  impl_->enter(Impl::Phase::kOver);
  impl_->watchdog.join();
  impl_->options.intake->stop();
}

}  // namespace shoal
