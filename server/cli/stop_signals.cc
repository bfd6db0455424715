#include "server/cli/stop_signals.h"

#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/process_limit.h"

namespace shoal {

Result<std::unique_ptr<StopSignals>> StopSignals::install(std::function<void()> tidy) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd signals(::signalfd(-1, &set, SFD_CLOEXEC));
  Fd requested(::eventfd(0, EFD_CLOEXEC)), leave(::eventfd(0, EFD_CLOEXEC));
  if (!signals.valid() || !requested.valid() || !leave.valid()) {
    const int error = errno;
    return Status::error(
        descriptor_code(error),
        cat("make descriptors for signals (signalfd, eventfd)", descriptor_hint(error)), error);
  }
  return std::unique_ptr<StopSignals>(
      new StopSignals(std::move(signals), std::move(requested), std::move(leave), std::move(tidy)));
}

StopSignals::StopSignals(Fd signals, Fd requested, Fd leave, std::function<void()> tidy)
    : signals_(std::move(signals)),
      requested_(std::move(requested)),
      leave_(std::move(leave)),
      tidy_(std::move(tidy)) {
  thread_ = std::thread([this] { receive(); });
}

StopSignals::~StopSignals() {
  ::eventfd_write(leave_.get(), 1);
  thread_.join();
}

void StopSignals::receive() {
  for (bool first = true;;) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {leave_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (fds[0].revents == 0 || ::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGHUP) {
      hang_up();
      continue;
    }
    if (!first || !started_) {
      tidy_();
      ::_exit(0);
    }
    first = false;
    ::eventfd_write(requested_.get(), 1);
  }
}

void StopSignals::on_hangup(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  hangup_ = std::move(call);
}

void StopSignals::hang_up() {
  const std::lock_guard lock(mutex_);
  if (hangup_) hangup_();
}

bool StopSignals::wait(Deadline deadline) {
  pollfd fd{requested_.get(), POLLIN, 0};
  for (;;) {
    if (::poll(&fd, 1, deadline.remaining_ms()) > 0) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace shoal
