#include "server/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
/// After a shortage that nothing explains, the next client is accepted after this long.
constexpr std::chrono::milliseconds kShortage{50};
/// Connections beyond the limit, for /health and /metrics alone.
constexpr size_t kOverLimit = 32;
/// A client that has sent nothing of its body for this long makes room if the server is full.
constexpr std::chrono::milliseconds kSlowSender{1'000};
/// At most this many are accepted before other work is looked at.
constexpr int kAcceptAtOnce = 16;

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(HttpServerOptions options)
      : options_(std::move(options)),
        context_{options_.routing, options_.limits, options_.done},
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
  };

  void await(Listener& listener);
  void accept(Listener& listener);
  bool take(Fd client);
  bool make_room(bool* over_limit);
  bool close_idle(bool over_limit);
  bool close_slow_sender();
  void tick();
  void begin_shutdown();

  const HttpServerOptions options_;
  const SessionContext context_;
  asio::io_context io_{1};
  asio::steady_timer ticker_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  int port_ = 0;
  struct Entry {
    std::shared_ptr<Session> session;
    bool over_limit = false;
  };
  std::vector<Entry> sessions_;
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
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    Fd client(::accept4(listener.descriptor.native_handle(), nullptr, nullptr,
                        SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client.valid()) {
      if (take(std::move(client))) continue;
      break;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    if (AcceptErrors::is_nobody(error)) continue;
    // A shortage of descriptors or memory, which may pass at any time, or a refusal. The client
    // waits in the kernel's queue.
    accept_errors_.log("http", error);
    close_idle(false);
    auto timer = std::make_shared<asio::steady_timer>(io_, kShortage);
    timer->async_wait([this, &listener, timer](const error_code& stopped) {
      if (!stopped && !stopping_) await(listener);
    });
    return;
  }
  await(listener);
}

/// Returns false if the connection had to be closed again.
bool HttpServer::Impl::take(Fd client) {
  bool over_limit = false;
  if (!make_room(&over_limit)) return false;
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
  if (error) return false;
  (void)client.release();
  const std::shared_ptr<const TlsMaterial> tls = options_.tls ? options_.tls->current() : nullptr;
  sessions_.push_back({make_session(std::move(socket), tls ? tls->context.get() : nullptr, context_,
                                    std::move(name), over_limit),
                       over_limit});
  sessions_.back().session->start();
  return true;
}

/// Whether one more connection may be taken. At the limit, the one that has been idle for longest
/// is closed; without an idle one, a few are taken for probes.
bool HttpServer::Impl::make_room(bool* over_limit) {
  std::erase_if(sessions_, [](const Entry& entry) { return entry.session->closed(); });
  const auto over = static_cast<size_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const Entry& entry) { return entry.over_limit; }));
  if (sessions_.size() - over < static_cast<size_t>(options_.max_connections)) return true;
  if (close_idle(false) || close_slow_sender()) return true;
  *over_limit = true;
  return over < kOverLimit || close_idle(true);
}

/// Closes the connection that has been idle for longest, of those within or beyond the limit.
/// Returns false if none is idle.
bool HttpServer::Impl::close_idle(bool over_limit) {
  const Entry* oldest = nullptr;
  for (const Entry& entry : sessions_) {
    if (entry.over_limit != over_limit || entry.session->closed() || entry.session->busy())
      continue;
    if (oldest == nullptr || entry.session->since() < oldest->session->since()) oldest = &entry;
  }
  if (oldest == nullptr) return false;
  oldest->session->close();
  std::erase_if(sessions_, [](const Entry& entry) { return entry.session->closed(); });
  return true;
}

/// Closes the connection whose request's body has stopped coming for longest. Returns false if
/// there is none.
bool HttpServer::Impl::close_slow_sender() {
  const RunningClock::time_point late = RunningClock::now() - kSlowSender;
  const Entry* slowest = nullptr;
  for (const Entry& entry : sessions_) {
    if (entry.session->closed() || !entry.session->awaits_body()) continue;
    if (entry.session->last_read() > late) continue;
    if (slowest == nullptr || entry.session->last_read() < slowest->session->last_read())
      slowest = &entry;
  }
  if (slowest == nullptr) return false;
  slowest->session->close();
  std::erase_if(sessions_, [](const Entry& entry) { return entry.session->closed(); });
  return true;
}

void HttpServer::Impl::tick() {
  const RunningClock::time_point now = RunningClock::now();
  ticked_ = now;
  for (size_t i = 0; i < sessions_.size(); ++i) {
    const std::shared_ptr<Session> session = sessions_[i].session;
    session->tick(now);
  }
  std::erase_if(sessions_, [](const Entry& entry) { return entry.session->closed(); });
  if (stopping_ && sessions_.empty() && !std::exchange(idle_told_, true)) idle_.set_value();
  ticker_.expires_after(kTick);
  ticker_.async_wait([this](const error_code& stopped) {
    if (!stopped) tick();
  });
}

void HttpServer::Impl::begin_shutdown() {
  if (std::exchange(stopping_, true)) return;
  for (const auto& listener : listeners_) {
    error_code ignored;
    listener->descriptor.close(ignored);
  }
  if (!options_.unix_socket.empty()) ::unlink(options_.unix_socket.c_str());
  const std::vector<Entry> sessions = sessions_;
  for (const Entry& entry : sessions) entry.session->stop();
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
    const std::vector<Entry> sessions = std::exchange(sessions_, {});
    for (const Entry& entry : sessions) entry.session->close();
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
