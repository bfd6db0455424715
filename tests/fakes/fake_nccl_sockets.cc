// Part of a FAKE of libnccl (fake_nccl.cc): how its ranks meet, and the sockets that carry the
// data.
#include "tests/fakes/fake_nccl_sockets.h"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace fake_nccl {
namespace {

constexpr int kRingTag = -1;
constexpr size_t kMaxRanks = 144;  // NCCL_MAX_LOCAL_RANKS of 2.32, the most of any release

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int listen_somewhere(int* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || ::bind(fd, plain, length) != 0 || ::listen(fd, 256) != 0 ||
      ::getsockname(fd, plain, &length) != 0)
    return -1;
  *port = ntohs(address.sin_port);
  return fd;
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ::close(fd);
    return -1;
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

/// Connects to a peer that may not be there yet or any more. Like NCCL's, its 34 attempts take a
/// minute.
int connect_patiently(int port) {
  for (int attempt = 1;; ++attempt) {
    const int fd = connect_to(port);
    if (fd >= 0 || attempt > 34) return fd;
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * attempt));
  }
}

bool write_all(int fd, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t wrote = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    at += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

struct Hello {
  uint64_t key = 0;
  int32_t ranks = 0;
  RankInfo info;
};

struct MessageHead {
  int32_t from = 0;
  int32_t tag = 0;
  uint64_t bytes = 0;
};

/// Waits for as many ranks as the first one announces, then sends the infos of all ranks to each of
/// them.
void run_root(int listener, uint64_t key) {
  std::vector<RankInfo> all;
  std::vector<int> sockets;
  size_t here = 0;
  do {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello;
    const bool fine = fd >= 0 && read_all(fd, &hello, sizeof hello) && hello.key == key &&
                      hello.ranks > 0 && static_cast<size_t>(hello.ranks) <= kMaxRanks;
    if (fine && all.empty()) {
      all.resize(static_cast<size_t>(hello.ranks));
      sockets.assign(static_cast<size_t>(hello.ranks), -1);
    }
    const auto rank = static_cast<size_t>(hello.info.rank);
    if (!fine || rank >= all.size() || sockets[rank] >= 0) {
      if (fd >= 0) ::close(fd);
      continue;
    }
    all[rank] = hello.info;
    sockets[rank] = fd;
    ++here;
  } while (all.empty() || here < all.size());
  // Answer rank 0 last, because this is its process, which may fail and end as soon as rank 0 goes
  // on.
  for (auto fd = sockets.rbegin(); fd != sockets.rend(); ++fd) {
    write_all(*fd, all.data(), all.size() * sizeof(RankInfo));
    ::close(*fd);
  }
  ::close(listener);
}

}  // namespace

int start_root(uint64_t key) {
  int port = 0;
  const int listener = listen_somewhere(&port);
  if (listener < 0) return 0;
  std::thread(run_root, listener, key).detach();
  return port;
}

bool Sockets::meet(int root_port, uint64_t key, RankInfo mine, int ranks) {
  rank_ = mine.rank;
  listener_ = listen_somewhere(&mine.port);
  if (listener_ < 0) return false;
  const int fd = connect_patiently(root_port);
  const Hello hello{key, ranks, mine};
  all_.resize(static_cast<size_t>(ranks));
  const bool met = fd >= 0 && write_all(fd, &hello, sizeof hello) &&
                   read_all(fd, all_.data(), all_.size() * sizeof(RankInfo));
  if (fd >= 0) ::close(fd);
  ::fcntl(listener_, F_SETFL, O_NONBLOCK);
  return met;
}

bool Sockets::send(int peer, int tag, const std::string& text) {
  const int fd = connect_patiently(all_[static_cast<size_t>(peer)].port);
  if (fd < 0) return false;
  const MessageHead head{rank_, tag, text.size()};
  // The death of a peer is not noticed here, because the bytes are already on their way.
  if (write_all(fd, &head, sizeof head)) write_all(fd, text.data(), text.size());
  ::close(fd);
  return true;
}

/// Accepts one connection, if there is one.
void Sockets::take_one() {
  const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    ::sched_yield();
    return;
  }
  MessageHead head;
  if (!read_all(fd, &head, sizeof head)) {
    ::close(fd);
    return;
  }
  if (head.tag == kRingTag) {
    before_ = fd;
    return;
  }
  std::string text(head.bytes, '\0');
  if (read_all(fd, text.data(), text.size())) inbox_[{head.from, head.tag}] = text;
  ::close(fd);
}

std::string Sockets::receive(int peer, int tag) {
  for (;;) {
    const auto found = inbox_.find({peer, tag});
    if (found != inbox_.end()) {
      std::string text = std::move(found->second);
      inbox_.erase(found);
      return text;
    }
    take_one();
  }
}

bool Sockets::open_ring() {
  if (next_ >= 0) return true;
  next_ = connect_patiently(all_[static_cast<size_t>(rank_ + 1) % all_.size()].port);
  const MessageHead head{rank_, kRingTag, 0};
  if (next_ < 0 || !write_all(next_, &head, sizeof head)) return false;
  while (before_ < 0) take_one();
  ::fcntl(next_, F_SETFL, O_NONBLOCK);
  ::fcntl(before_, F_SETFL, O_NONBLOCK);
  return true;
}

bool Sockets::exchange(const char* out, char* in, size_t bytes) {
  size_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    pollfd ends[] = {{sent < bytes ? next_ : -1, POLLOUT, 0},
                     {got < bytes ? before_ : -1, POLLIN, 0}};
    if (::poll(ends, 2, -1) < 0 && errno != EINTR) return false;
    if (ends[0].revents != 0) {
      const ssize_t wrote = ::send(next_, out + sent, bytes - sent, MSG_NOSIGNAL);
      if (wrote < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (wrote > 0) sent += static_cast<size_t>(wrote);
    }
    if (ends[1].revents != 0) {
      const ssize_t read = ::recv(before_, in + got, bytes - got, 0);
      if (read == 0 || (read < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (read > 0) got += static_cast<size_t>(read);
    }
  }
  return true;
}

}  // namespace fake_nccl
