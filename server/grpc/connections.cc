#include "server/grpc/connections.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"

namespace shoal {

namespace {

/// A server without a limit on its descriptors still has one on its connections, because each costs
/// some 30 KiB in gRPC.
constexpr int64_t kMostDescriptors = 16384;
/// This many connections are taken even if a limit on descriptors leaves room for none.
constexpr size_t kAlways = 4;
/// This many are taken beyond the limit if no connection is idle.
constexpr int kBeyond = 4;
/// A client that has sent something within this time may be in the middle of a request, which gRPC
/// shows only once it has all of it.
constexpr uint32_t kSendingMs = 1'000;
/// A connection beyond the limit is for a short call, so that a call that lasts longer than this
/// does not protect it.
constexpr std::chrono::milliseconds kLongForProbe{2'000};
/// gRPC closes a connection at once when it has been shut down. If it takes longer than this, the
/// next one is closed too.
constexpr std::chrono::milliseconds kClosing{1'000};
constexpr std::chrono::milliseconds kBetweenLogs{60'000};

int64_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kMostDescriptors)
    return kMostDescriptors;
  return static_cast<int64_t>(limit.rlim_cur);
}

ino_t inode_of(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

uint16_t peer_port(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  return address.ss_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port)
             : 0;
}

/// The port at the end of a peer's name; 0 for a peer without one.
uint16_t peer_port(std::string_view peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string_view::npos) return 0;
  uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(peer.data() + colon + 1, peer.data() + peer.size(), port);
  return error == std::errc() && end == peer.data() + peer.size() ? port : 0;
}

/// True if the client has sent something lately. A client that has never sent a byte has not.
bool is_sending(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  const bool has_bytes = size > offsetof(tcp_info, tcpi_bytes_received);
  return (!has_bytes || info.tcpi_bytes_received > 0) && info.tcpi_last_data_recv < kSendingMs;
}

/// A descriptor of our own for a socket that gRPC owns; none if gRPC has closed it. The number may
/// mean another file at any time, but the copy's inode is checked, and a copy stays what it is.
Fd copy_of(int descriptor, ino_t inode) {
  Fd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (copy.valid() && inode_of(copy.get()) != inode) copy.reset();
  return copy;
}

}  // namespace

std::string address_of(std::string_view peer) {
  return std::string(peer.substr(0, peer.rfind(':')));
}

int64_t open_descriptors(int64_t below) {
  int64_t open = 0;
  for (int64_t descriptor = 0; descriptor < below; ++descriptor)
    open += ::fcntl(static_cast<int>(descriptor), F_GETFD) >= 0 ? 1 : 0;
  return open;
}

Connections::Connections(int64_t kept)
    : below_(descriptor_limit()), most_(descriptor_limit() - kept) {
  count();
}

void Connections::count() {
  open_ = open_descriptors(below_);
}

void Connections::count_again() {
  const std::lock_guard lock(mutex_);
  count();
}

void Connections::add(int descriptor) {
  const std::lock_guard lock(mutex_);
  connections_.push_back({.descriptor = descriptor,
                          .inode = inode_of(descriptor),
                          .port = peer_port(descriptor),
                          .accepted = Clock::now(),
                          .over_limit = connections_.size() >= kAlways && open_ >= most_,
                          .closed = {}});
  ++open_;
}

void Connections::call_began(std::string_view peer) {
  const uint16_t port = peer_port(peer);
  if (port == 0) return;  // a call of the server to itself
  const std::lock_guard lock(mutex_);
  ++calls_[port].live;
}

void Connections::call_ended(std::string_view peer) {
  const uint16_t port = peer_port(peer);
  if (port == 0) return;
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[port];
  --calls.live;
  calls.last_end = Clock::now();
}

bool Connections::over_limit(std::string_view peer) {
  const uint16_t port = peer_port(peer);
  const std::lock_guard lock(mutex_);
  const bool was =
      std::any_of(connections_.begin(), connections_.end(),
                  [port](const Connection& one) { return one.port == port && one.over_limit; });
  return was && !room();  // there may be room for it by now
}

std::string Connections::describe() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return "the list of connections is in use";
  int calls = 0;
  for (const auto& [port, on_port] : calls_) calls += on_port.live;
  const auto open =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& one) { return inode_of(one.descriptor) == one.inode; });
  return cat(counted(calls, "call is", "calls are"), " open on ", counted(open, "connection"));
}

/// Removes the connections that gRPC has closed.
void Connections::forget_closed() {
  std::erase_if(connections_, [this](const Connection& connection) {
    if (inode_of(connection.descriptor) == connection.inode) return false;
    const auto calls = calls_.find(connection.port);
    if (calls != calls_.end() && calls->second.live == 0) calls_.erase(calls);
    return true;
  });
}

bool Connections::room() {
  if (open_ < most_) return true;
  forget_closed();
  count();
  if (open_ >= most_) return connections_.size() < kAlways;
  for (Connection& connection : connections_) connection.over_limit = false;
  return true;
}

Connections::Room Connections::make_room() {
  const std::lock_guard lock(mutex_);
  if (room()) return Room::kFree;
  const Clock::time_point now = Clock::now();
  if (being_closed(now) || close_longest_idle(now, false)) return Room::kSoon;
  const auto beyond = std::count_if(connections_.begin(), connections_.end(),
                                    [](const Connection& one) { return one.over_limit; });
  if (beyond < kBeyond) return Room::kFree;
  return close_longest_idle(now, true) ? Room::kSoon : Room::kNone;
}

Clock::time_point Connections::idle_since(const Connection& connection) const {
  const auto calls = calls_.find(connection.port);
  return calls == calls_.end() ? connection.accepted
                               : std::max(connection.accepted, calls->second.last_end);
}

bool Connections::has_call(const Connection& connection) const {
  const auto calls = calls_.find(connection.port);
  return calls != calls_.end() && calls->second.live > 0;
}

bool Connections::being_closed(Clock::time_point now) const {
  return std::any_of(connections_.begin(), connections_.end(), [now](const Connection& one) {
    return one.closed && now - *one.closed < kClosing;
  });
}

/// Closes the connection that has been idle for longest, of those beyond the limit or of the
/// others. Returns false if none is idle.
bool Connections::close_longest_idle(Clock::time_point now, bool over_limit) {
  std::vector<std::pair<Clock::time_point, size_t>> idle;
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& one = connections_[i];
    if (one.closed || one.over_limit != over_limit) continue;
    const bool too_long = over_limit && now - one.accepted > kLongForProbe;
    if (!has_call(one) || too_long) idle.emplace_back(idle_since(one), i);
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [since, i] : idle) {
    Connection& one = connections_[i];
    const Fd socket = copy_of(one.descriptor, one.inode);
    if (!socket.valid() || (!over_limit && is_sending(socket.get()))) continue;
    (void)::shutdown(socket.get(), SHUT_RDWR);
    one.closed = now;
    log_closed(one, now);
    return true;
  }
  return false;
}

void Connections::log_closed(const Connection& connection, Clock::time_point now) {
  ++closed_since_log_;
  if (logged_ && now - *logged_ < kBetweenLogs) return;
  const double idle_s = std::chrono::duration<double>(now - idle_since(connection)).count();
  log_warning(cat("closed ", closed_since_log_, " idle connections, the last one after ",
                  static_cast<int64_t>(idle_s), " s: ", open_, " descriptors are open, and the ",
                  "limit (ulimit -n) less what a restart of the ranks needs is ", most_));
  logged_ = now;
  closed_since_log_ = 0;
}

}  // namespace shoal
