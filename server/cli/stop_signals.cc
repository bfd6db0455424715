#include "server/cli/stop_signals.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/signals.h"

namespace shoal {

Result<std::unique_ptr<StopSignals>> StopSignals::install(Tidy tidy) {
  const sigset_t set = not_ignored({SIGTERM, SIGINT, SIGQUIT, SIGHUP});
  for (const int number : {SIGUSR1, SIGUSR2, SIGALRM}) std::signal(number, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd signals(::signalfd(-1, &set, SFD_CLOEXEC));
  Fd requested(::eventfd(0, EFD_CLOEXEC)), leave(::eventfd(0, EFD_CLOEXEC));
  if (!signals.valid() || !requested.valid() || !leave.valid()) {
    const int error = errno;
    return Status::error(
        descriptor_code(error),
        cat("make descriptors for signals (signalfd, eventfd)", descriptor_hint(error)), error);
  }
  // Looked for now, because once it is closed there is none.
  const Fd terminal(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC));
  return std::unique_ptr<StopSignals>(new StopSignals(std::move(signals), std::move(requested),
                                                      std::move(leave), terminal.valid(),
                                                      std::move(tidy)));
}

StopSignals::StopSignals(Fd signals, Fd requested, Fd leave, bool has_terminal, Tidy tidy)
    : signals_(std::move(signals)),
      requested_(std::move(requested)),
      leave_(std::move(leave)),
      has_terminal_(has_terminal),
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
    if (info.ssi_signo == SIGHUP && (!has_terminal_ || !first)) {
      if (!has_terminal_) hang_up();
      continue;
    }
    if (!first || !started_) {
      clear_progress_line();
      tidy_(static_cast<int>(info.ssi_signo));
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
  log_info(
      "SIGHUP: without a controlling terminal it ends nothing; certificates and keys are read "
      "again if they have changed");
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
