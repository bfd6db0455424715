#include "server/grpc/connections/connections.h"

#include <algorithm>
#include <fcntl.h>
#include <set>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "server/grpc/connections/grpc_socket.h"

namespace shoal {

namespace {

/// A server without a limit on its descriptors still has one on its connections, because each costs
/// some 30 KiB in gRPC.
constexpr int64_t kMostDescriptors = 16384;
/// This many connections are taken even if a limit on descriptors leaves room for none.
constexpr size_t kAlways = 4;
/// This many are taken beyond the limit if no connection is idle.
constexpr int kBeyond = 4;
/// A connection beyond the limit is for a short call, so that a call that lasts longer than this
/// does not protect it.
constexpr std::chrono::milliseconds kLongForProbe{2'000};
/// gRPC closes a connection at once when it has been shut down. If it takes longer than this, the
/// next one is closed too.
constexpr std::chrono::milliseconds kClosing{1'000};
constexpr std::chrono::milliseconds kBetweenLogs{60'000};

/// How often the bytes of connections are looked at: every kBetweenLooks, and every
/// kBetweenUrgentLooks while it is urgent. It is urgent while a connection brings at least kUrgent
/// bytes between two looks that nothing explains. On a busy machine a look may come late, and such
/// bytes may take many times their size in memory. Looking takes at most a fiftieth of the time, or
/// a fifth while it is urgent, unless looks would then be further apart than kMostBetweenLooks.
constexpr std::chrono::milliseconds kBetweenLooks{50}, kBetweenUrgentLooks{2},
    kMostBetweenLooks{200};
constexpr double kUrgent = 32 << 10;
constexpr int kRestPerLook = 49, kRestPerUrgentLook = 4;
/// Connections that are gone are forgotten once they are more than this, and a quarter of all.
constexpr size_t kFewGone = 64;
/// A client acknowledges what it is sent. For a small message, the acknowledgement has at most this
/// part of the bytes of the message, so this part of the bytes sent explains bytes that come.
constexpr double kAcknowledged = 0.25;

int64_t descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kMostDescriptors)
    return kMostDescriptors;
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace

int64_t open_descriptors(int64_t below) {
  int64_t open = 0;
  for (int64_t descriptor = 0; descriptor < below; ++descriptor)
    open += ::fcntl(static_cast<int>(descriptor), F_GETFD) >= 0 ? 1 : 0;
  return open;
}

Connections::Connections(int64_t kept, size_t request_bytes, std::function<size_t()> memory)
    : below_(descriptor_limit()),
      most_(descriptor_limit() - kept),
      memory_(std::move(memory)),
      most_memory_(memory_() + most_more_memory(request_bytes)) {
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
  Connection added{.descriptor = descriptor,
                   .inode = inode_of(descriptor),
                   .peer = peer_of(descriptor),
                   .accepted = Clock::now(),
                   .over_limit = connections_.size() >= kAlways && open_ >= most_};
  for (Connection& other : connections_) {
    const bool same = added.peer && other.peer == added.peer && !other.closed;
    if (same && inode_of(other.descriptor) == other.inode) added.alone = other.alone = false;
  }
  if (const auto calls = added.peer ? calls_.find(*added.peer) : calls_.end();
      calls != calls_.end()) {
    calls->second.forgotten = false;
    added.progress = calls->second.progress;
    added.given_up = calls->second.given_up;
  }
  connections_.push_back(added);
  ++open_;
}

void Connections::call_began(std::string_view name) {
  const std::optional<Peer> peer = parse_peer(name);
  if (!peer) return;  // a call of the server to itself
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[*peer];
  ++calls.live;
  ++calls.without_message;
  ++calls.awaiting;
  ++calls.progress;
}

void Connections::call_ended(std::string_view name, Brought so_far) {
  const std::optional<Peer> peer = parse_peer(name);
  if (!peer) return;
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[*peer];
  --calls.live;
  if (so_far == Brought::kNothing) --calls.without_message;
  if (so_far != Brought::kAll) {
    --calls.awaiting;
    calls.given_up += kMessageBytes;
  }
  calls.last_end = Clock::now();
  if (calls.forgotten && calls.live == 0) calls_.erase(*peer);
}

void Connections::message_came(std::string_view name, Brought before, Brought now) {
  const std::optional<Peer> peer = parse_peer(name);
  if (!peer) return;
  const std::lock_guard lock(mutex_);
  Calls& calls = calls_[*peer];
  ++calls.progress;
  if (before == Brought::kNothing) --calls.without_message;
  if (before != Brought::kAll && now == Brought::kAll) --calls.awaiting;
}

/// The latest connection with this peer, of all or of those that gRPC has not closed; nullptr if
/// there is none.
const Connections::Connection* Connections::latest(std::string_view name, bool open) const {
  const std::optional<Peer> peer = parse_peer(name);
  if (!peer) return nullptr;
  for (auto one = connections_.rbegin(); one != connections_.rend(); ++one) {
    if (one->peer == peer && (!open || inode_of(one->descriptor) == one->inode)) return &*one;
  }
  return nullptr;
}

bool Connections::over_limit(std::string_view peer) {
  const std::lock_guard lock(mutex_);
  const Connection* const one = latest(peer, true);
  return one != nullptr && one->over_limit && !room();  // there may be room for it by now
}

bool Connections::has_closed(std::string_view peer) const {
  const std::lock_guard lock(mutex_);
  const Connection* const one = latest(peer, false);
  return one != nullptr && one->closed;
}

uint64_t Connections::received(std::string_view peer) const {
  const std::lock_guard lock(mutex_);
  const Connection* const one = latest(peer, true);
  if (one == nullptr) return 0;
  return bytes_of(one->descriptor, one->inode).value_or(SocketBytes{}).received;
}

size_t Connections::known() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

std::string Connections::describe() const {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return "the list of connections is in use";
  int calls = 0;
  for (const auto& [peer, with_peer] : calls_) calls += with_peer.live;
  const auto open =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& one) { return inode_of(one.descriptor) == one.inode; });
  return cat(counted(calls, "call is", "calls are"), " open on ", counted(open, "connection"));
}

/// Removes the connections that gRPC has closed, and the calls of peers that have none any more, at
/// their end if they are live. A call may begin when its connection is gone already.
void Connections::forget_closed() {
  std::erase_if(connections_,
                [](const Connection& one) { return inode_of(one.descriptor) != one.inode; });
  std::set<Peer> open;
  for (const Connection& one : connections_) open.insert(one.peer.value_or(Peer{}));
  for (auto& [peer, calls] : calls_) calls.forgotten = !open.contains(peer);
  std::erase_if(calls_,
                [](const auto& one) { return one.second.forgotten && one.second.live == 0; });
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

/// nullptr if there have been none.
const Connections::Calls* Connections::calls_of(const Connection& connection) const {
  const auto found = connection.peer ? calls_.find(*connection.peer) : calls_.end();
  return found == calls_.end() ? nullptr : &found->second;
}

Clock::time_point Connections::idle_since(const Connection& connection) const {
  const Calls* calls = calls_of(connection);
  return calls == nullptr ? connection.accepted : std::max(connection.accepted, calls->last_end);
}

bool Connections::has_call(const Connection& connection) const {
  const Calls* calls = calls_of(connection);
  return calls != nullptr && calls->live > calls->without_message;
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
    close(one, socket, now);
    log_closed(one, now);
    return true;
  }
  return false;
}

void Connections::close(Connection& connection, const Fd& socket, Clock::time_point now) const {
  (void)::shutdown(socket.get(), SHUT_RDWR);
  connection.closed = now;
}

/// Counts what has come since the last look. Returns false if the connection is gone.
bool Connections::look_at(Connection& connection, RunningClock::time_point now) const {
  const std::optional<SocketBytes> bytes = bytes_of(connection.descriptor, connection.inode);
  if (!bytes) return false;
  const auto came =
      static_cast<double>(bytes->received - std::exchange(connection.received, bytes->received));
  const auto went = static_cast<double>(bytes->sent - std::exchange(connection.sent, bytes->sent));
  const Calls* calls = connection.alone ? calls_of(connection) : nullptr;
  if (calls != nullptr && std::exchange(connection.progress, calls->progress) != calls->progress) {
    connection.brought = 0;
    connection.pending.empty(now);
    connection.given_up = calls->given_up;
  } else {
    connection.brought += came;
    connection.pending.fill(came - kAcknowledged * went, now);
  }
  return true;
}

/// What is in the bucket of a connection and cannot be part of a message.
double Connections::beyond_calls(const Connection& connection) const {
  const Calls* calls = connection.alone ? calls_of(connection) : nullptr;
  if (calls == nullptr) return connection.pending.bytes();
  const double explained = kMessageBytes * calls->awaiting + calls->given_up - connection.given_up;
  return std::max(0.0, connection.pending.bytes() - explained);
}

std::chrono::milliseconds Connections::close_endless() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point began = Clock::now();
  const RunningClock::time_point now = RunningClock::now();
  std::vector<Connection*> looked_at;
  std::vector<PendingBytes> bytes;
  bool urgent = false;
  for (Connection& one : connections_) {
    // One that is being closed still has its memory.
    if ((one.closed && began - *one.closed >= kClosing) || !look_at(one, now)) continue;
    const double before = std::exchange(one.beyond, one.closed ? 0.0 : beyond_calls(one));
    urgent = urgent || one.beyond > before + kUrgent;
    looked_at.push_back(&one);
    bytes.push_back({one.brought, one.beyond, one.peer.value_or(Peer{})});
  }
  for (const size_t i : too_much(bytes)) close_unexplained(*looked_at[i]);
  if (const std::optional<size_t> i = heaviest(bytes);
      i && !looked_at[*i]->closed && memory_() > most_memory_)
    close_unexplained(*looked_at[*i]);
  const size_t gone = connections_.size() - looked_at.size();
  if (gone > kFewGone && gone > connections_.size() / 4) forget_closed();
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(
      (Clock::now() - began) * (urgent ? kRestPerUrgentLook : kRestPerLook));
  return std::max(urgent ? kBetweenUrgentLooks : kBetweenLooks, std::min(rest, kMostBetweenLooks));
}

int Connections::close_all() {
  const std::lock_guard lock(mutex_);
  int closed = 0;
  for (Connection& connection : connections_) {
    const Fd socket = copy_of(connection.descriptor, connection.inode);
    if (!socket.valid()) continue;
    close(connection, socket, Clock::now());
    ++closed;
  }
  return closed;
}

void Connections::close_unexplained(Connection& connection) {
  const Fd socket = copy_of(connection.descriptor, connection.inode);
  if (!socket.valid()) return;  // gRPC has just closed it, or no descriptor is left: look again
  const Clock::time_point now = Clock::now();
  close(connection, socket, now);
  if (!is_due(&endless_closed_, now)) return;
  const Calls* calls = calls_of(connection);
  log_warning(cat("closed ", counted(endless_closed_.count, "connection"), ", the last one after ",
                  static_cast<int64_t>(connection.brought),
                  " bytes in which no call began and no message ended: headers without end, "
                  "more than messages may have, or the most while the front has 1 GiB more memory "
                  "than at its start; beside ",
                  counted(calls == nullptr ? 0 : calls->live, "call")),
              {{"event", "grpc_closed"}, {"connections", endless_closed_.count}, {"idle", false}});
  endless_closed_ = {.count = 0, .logged = now};
}

void Connections::log_closed(const Connection& connection, Clock::time_point now) {
  if (!is_due(&idle_closed_, now)) return;
  const double idle_s = std::chrono::duration<double>(now - idle_since(connection)).count();
  log_warning(
      cat("closed ", counted(idle_closed_.count, "idle connection"), ", the last one after ",
          static_cast<int64_t>(idle_s), " s: ", open_, " descriptors are open, and the ",
          "limit (ulimit -n) less what a restart of the ranks needs is ", most_),
      {{"event", "grpc_closed"}, {"connections", idle_closed_.count}, {"idle", true}});
  idle_closed_ = {.count = 0, .logged = now};
}

/// Counts one more. Whether it is time for a line.
bool Connections::is_due(Unlogged* unlogged, Clock::time_point now) {
  ++unlogged->count;
  return !unlogged->logged || now - *unlogged->logged >= kBetweenLogs;
}

}  // namespace shoal
