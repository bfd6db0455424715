#include "server/grpc/connections/acceptor.h"

#include <cerrno>
#include <cstdint>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/process_limit.h"

namespace shoal {

namespace {

/// gRPC needs about this long to close a connection that was shut down.
constexpr int kSoonMs = 2;
/// How often a server whose connections are all in use looks for one that no longer is, and how
/// long it waits after an error of accept4 that nothing else explains.
constexpr int kLaterMs = 50;

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::start(std::vector<Fd> listeners,
                                                  std::shared_ptr<Connections> connections,
                                                  HandOver hand_over) {
  Fd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) {
    const int error = errno;
    return Status::error(descriptor_code(error),
                         cat("make an eventfd for the acceptor", descriptor_hint(error)), error);
  }
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(listeners), std::move(connections),
                                                  std::move(hand_over), std::move(wake)));
  try {
    acceptor->thread_ = std::thread([raw = acceptor.get()] { raw->run(); });
  } catch (const std::system_error& failed) {
    return Status::error(
        Code::kResourceExhausted,
        "a thread that accepts clients (ulimit -u, ulimit -v and pids.max limit it)",
        failed.code().value());
  }
  return acceptor;
}

Acceptor::Acceptor(std::vector<Fd> listeners, std::shared_ptr<Connections> connections,
                   HandOver hand_over, Fd wake)
    : listeners_(std::move(listeners)),
      connections_(std::move(connections)),
      hand_over_(std::move(hand_over)),
      wake_(std::move(wake)) {}

Acceptor::~Acceptor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
}

/// Returns false if the thread is to end.
bool Acceptor::sleep_ms(int milliseconds) const {
  pollfd woken{wake_.get(), POLLIN, 0};
  return ::poll(&woken, 1, milliseconds) <= 0;
}

void Acceptor::run() {
  std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
  for (const Fd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
  for (;;) {
    const int ready = ::poll(waits.data(), waits.size(), -1);
    if (ready < 0) {
      if (errno != EINTR && !sleep_ms(kLaterMs)) return;
      continue;
    }
    if (waits.front().revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      // Room is made only once a client waits, so that no idle connection is closed for nothing.
      const Connections::Room room = connections_->make_room();
      if (room == Connections::Room::kFree) {
        serve(listeners_[i - 1]);
      } else if (!sleep_ms(room == Connections::Room::kSoon ? kSoonMs : kLaterMs)) {
        return;
      }
    }
  }
}

void Acceptor::serve(const Fd& listener) {
  Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (client.valid()) {
    connections_->add(client.get());
    return hand_over_(std::move(client), listener.get());
  }
  // Everything else is a shortage (EMFILE, ENFILE, ENOBUFS, ENOMEM), which may pass at any time, or
  // a refusal (EPERM).
  if (const int error = errno; !AcceptErrors::is_nobody(error)) {
    errors_.log("grpc", error);
    connections_->count_again();
    (void)sleep_ms(kLaterMs);
  }
}

}  // namespace shoal
