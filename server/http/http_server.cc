#include "server/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "runtime/base/log.h"
#include "server/http/asio_session.h"
#include "server/net/accept_errors.h"
#include "server/net/listen.h"
#include "server/net/peer.h"

namespace shoal {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// How often deadlines are looked at.
constexpr std::chrono::milliseconds kTick{100};
/// An event thread that does not come to that for this long hangs.
constexpr std::chrono::seconds kSilent{30};
/// When no client can be accepted, this is tried again after this long.
constexpr std::chrono::milliseconds kShortage{50};
/// So many connections more than the limit may be open. They are for probes, and for clients that
/// hear that there is no place.
constexpr int kOverLimit = 32;
/// A client that has sent nothing of its body for this long makes room if the server is full.
constexpr std::chrono::milliseconds kSlowSender{1'000};
/// At most this many are accepted before other work is looked at.
constexpr int kAcceptAtOnce = 16;

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(HttpServerOptions options)
      : options_(std::move(options)),
        context_{options_.routing, options_.limits, options_.done, [this] { return has_place(); }},
        ticker_(io_),
        work_(asio::make_work_guard(io_)) {}

  Status listen();
  Status run();
  void stop_accepting();
  void shutdown(Deadline deadline);
  std::string address() const;
  bool alive() const;

 private:
  struct Listener {
    explicit Listener(asio::io_context& io, Fd socket) : descriptor(io, socket.release()) {}
    asio::posix::stream_descriptor descriptor;
    bool in_a_hurry = false;  // those who come have waited, and still wait
  };

  void await(Listener& listener);
  void accept(Listener& listener);
  int accept_next(Listener& listener);
  void accept_later(Listener& listener);
  bool is_full();
  bool make_room(bool in_a_hurry);
  bool has_place();
  bool close_idle(bool in_a_hurry);
  bool evict_slow_sender();
  void tick();
  void begin_shutdown();

  const HttpServerOptions options_;
  const SessionContext context_;
  asio::io_context io_{1};
  asio::steady_timer ticker_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  int port_ = 0;
  std::vector<std::shared_ptr<Session>> sessions_;
  AcceptErrors accept_errors_;
  bool stopping_ = false;
  std::atomic<RunningClock::time_point> ticked_ = RunningClock::now();
  std::promise<void> idle_;  // set when the last session is closed while stopping
  bool idle_told_ = false;
  std::thread thread_;
};

namespace {

/// Removes the socket that a server which is gone has left at the path. Nothing else is removed.
Status remove_dead_socket(const std::string& path, const sockaddr* address, socklen_t size) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return {};
  if (!S_ISSOCK(found.st_mode))
    return Status::error(Code::kInvalidArgument,
                         cat("--uds: ", path, " exists and is no socket; choose another path"));
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool dead = ::connect(probe.get(), address, size) != 0 && errno == ECONNREFUSED;
  if (!dead)
    return Status::error(Code::kUnavailable, cat("--uds: another server listens at ", path));
  ::unlink(path.c_str());
  return {};
}

/// A Unix socket that listens at a path. A socket that a server which is gone has left there is
/// replaced.
Result<Fd> listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Status::error(Code::kInvalidArgument,
                         cat("--uds: the path has ", path.size(), " bytes; at most ",
                             sizeof address.sun_path - 1, " fit the address of a socket"));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid())
    return Status::error(Code::kResourceExhausted, "a Unix socket for --uds", errno);
  const auto* bare = reinterpret_cast<const sockaddr*>(&address);
  SHOAL_RETURN_IF_ERROR(remove_dead_socket(path, bare, sizeof address));
  if (::bind(socket.get(), bare, sizeof address) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    const int error = errno;
    return Status::error(error == EACCES ? Code::kPermissionDenied : Code::kUnavailable,
                         cat("--uds: listen at ", path), error);
  }
  return socket;
}

/// The peer's address as gRPC's front writes it, so that one client has one share of the queue on
/// both.
std::string peer_of(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "unknown";
  return client_name(peer);
}

}  // namespace

Status HttpServer::Impl::listen() {
  if (!options_.unix_socket.empty()) {
    SHOAL_ASSIGN_OR_RETURN(Fd socket, listen_unix(options_.unix_socket));
    listeners_.push_back(std::make_unique<Listener>(io_, std::move(socket)));
    return {};
  }
  SHOAL_ASSIGN_OR_RETURN(Listeners listeners,
                         listen_on(options_.host, options_.port, options_.port_flag));
  port_ = listeners.port;
  for (Fd& socket : listeners.sockets)
    listeners_.push_back(std::make_unique<Listener>(io_, std::move(socket)));
  return {};
}

Status HttpServer::Impl::run() {
  for (const auto& listener : listeners_) await(*listener);
  tick();
  try {
    thread_ = std::thread([this] { io_.run(); });
  } catch (const std::system_error& failed) {
    return Status::error(Code::kResourceExhausted,
                         "a thread for HTTP (ulimit -u, ulimit -v and pids.max limit it)",
                         failed.code().value());
  }
  return {};
}

std::string HttpServer::Impl::address() const {
  return options_.unix_socket.empty() ? join_host_port(options_.host, port_)
                                      : "unix:" + options_.unix_socket;
}

bool HttpServer::Impl::alive() const {
  return RunningClock::now() - ticked_.load() < kSilent;
}

void HttpServer::Impl::await(Listener& listener) {
  listener.descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                 [this, &listener](const error_code& error) {
                                   if (!error && !stopping_) accept(listener);
                                 });
}

void HttpServer::Impl::accept(Listener& listener) {
  // None is closed to make room for a client that may not be there.
  for (int i = 0; i < kAcceptAtOnce && (i == 0 || !is_full()); ++i) {
    if (!make_room(listener.in_a_hurry)) return accept_later(listener);
    const int error = accept_next(listener);
    if (error == EAGAIN) break;
    if (error == 0 || AcceptErrors::is_nobody(error)) continue;
    // A shortage of descriptors or memory, which may pass at any time, or a refusal.
    accept_errors_.log("http", error);
    close_idle(false);
    return accept_later(listener);
  }
  pollfd queue{listener.descriptor.native_handle(), POLLIN, 0};
  listener.in_a_hurry = listener.in_a_hurry && ::poll(&queue, 1, 0) > 0;
  await(listener);
}

/// Takes the next client that waits. Returns 0, or the errno of accept4.
int HttpServer::Impl::accept_next(Listener& listener) {
  Fd client(::accept4(listener.descriptor.native_handle(), nullptr, nullptr,
                      SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client.valid()) return errno;
  const int on = 1;
  ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(client.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  std::string name = peer_of(client.get());
  sockaddr_storage own{};  // for its family
  socklen_t size = sizeof own;
  ::getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size);
  StreamSocket socket(io_);
  error_code error;
  socket.assign(asio::generic::stream_protocol(own.ss_family, 0), client.get(), error);
  if (error) return 0;
  (void)client.release();
  const std::shared_ptr<const TlsMaterial> tls = options_.tls ? options_.tls->current() : nullptr;
  sessions_.push_back(make_session(std::move(socket), tls ? tls->context.get() : nullptr, context_,
                                   std::move(name)));
  sessions_.back()->start();
  if (stopping_) sessions_.back()->stop();
  return 0;
}

/// Until then clients wait in the kernel's queue. From then on, connections that have sent no
/// request are closed for them.
void HttpServer::Impl::accept_later(Listener& listener) {
  auto timer = std::make_shared<asio::steady_timer>(io_, kShortage);
  timer->async_wait([this, &listener, timer](const error_code& stopped) {
    if (stopped || stopping_) return;
    listener.in_a_hurry = true;
    await(listener);
  });
}

bool HttpServer::Impl::is_full() {
  std::erase_if(sessions_, [](const auto& session) { return session->closed(); });
  return std::ssize(sessions_) >= options_.max_connections;
}

/// Whether one more connection may be taken. At the limit, the one that has been idle for longest
/// is closed; without an idle one, a few more are taken, which may not get a place. In a hurry,
/// those that may still send a request make room too.
bool HttpServer::Impl::make_room(bool in_a_hurry) {
  return !is_full() || close_idle(false) ||
         std::ssize(sessions_) < options_.max_connections + kOverLimit ||
         (in_a_hurry && close_idle(true));
}

bool HttpServer::Impl::has_place() {
  if (std::ssize(sessions_) <= options_.max_connections) return true;
  const auto taken = std::count_if(sessions_.begin(), sessions_.end(),
                                   [](const auto& session) { return session->holds_place(); });
  return taken < options_.max_connections || evict_slow_sender();
}

/// Closes the connection that has been idle for longest. Returns false if none is idle.
bool HttpServer::Impl::close_idle(bool in_a_hurry) {
  Session* oldest = nullptr;
  for (const auto& session : sessions_) {
    if (session->closed() || (in_a_hurry ? session->has_request() : session->busy())) continue;
    if (oldest == nullptr || session->since() < oldest->since()) oldest = session.get();
  }
  if (oldest == nullptr) return false;
  oldest->close();
  return true;
}

/// Evicts the request whose body has stopped for longest. Returns false if there is none.
bool HttpServer::Impl::evict_slow_sender() {
  const RunningClock::time_point late = RunningClock::now() - kSlowSender;
  Session* slowest = nullptr;
  for (const auto& session : sessions_) {
    if (session->closed() || !session->awaits_body() || session->last_read() > late) continue;
    if (slowest == nullptr || session->last_read() < slowest->last_read()) slowest = session.get();
  }
  if (slowest == nullptr) return false;
  slowest->evict();
  return true;
}

void HttpServer::Impl::tick() {
  const RunningClock::time_point now = RunningClock::now();
  ticked_ = now;
  for (const auto& session : sessions_) session->tick(now);
  std::erase_if(sessions_, [](const auto& session) { return session->closed(); });
  if (stopping_ && sessions_.empty() && !std::exchange(idle_told_, true)) idle_.set_value();
  ticker_.expires_after(kTick);
  ticker_.async_wait([this](const error_code& stopped) {
    if (!stopped) tick();
  });
}

void HttpServer::Impl::begin_shutdown() {
  if (std::exchange(stopping_, true)) return;
  for (const auto& session : sessions_) session->stop();
  for (const auto& listener : listeners_) {
    // Those that wait in the kernel's queue would be reset.
    while (make_room(false)) {
      const int error = accept_next(*listener);
      if (error == EAGAIN || (error != 0 && !AcceptErrors::is_nobody(error))) break;
    }
    error_code ignored;
    listener->descriptor.close(ignored);
  }
  if (!options_.unix_socket.empty()) ::unlink(options_.unix_socket.c_str());
}

void HttpServer::Impl::stop_accepting() {
  asio::post(io_, [this] { begin_shutdown(); });
}

void HttpServer::Impl::shutdown(Deadline deadline) {
  if (!thread_.joinable()) return;
  stop_accepting();
  const std::future<void> idle = idle_.get_future();
  while (!deadline.passed() && idle.wait_for(std::chrono::milliseconds(deadline.remaining_ms())) !=
                                   std::future_status::ready) {
  }
  asio::post(io_, [this] {
    for (const auto& session : std::exchange(sessions_, {})) session->close();
    ticker_.cancel();
    work_.reset();
    io_.stop();
  });
  thread_.join();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  shutdown(Deadline::after_ms(0));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  SHOAL_RETURN_IF_ERROR(impl->listen());
  SHOAL_RETURN_IF_ERROR(impl->run());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::string HttpServer::address() const {
  return impl_->address();
}

bool HttpServer::alive() const {
  return impl_->alive();
}

void HttpServer::stop_accepting() {
  impl_->stop_accepting();
}

void HttpServer::shutdown(Deadline deadline) {
  impl_->shutdown(deadline);
}

}  // namespace shoal
