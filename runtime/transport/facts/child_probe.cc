#include "runtime/transport/facts/child_probe.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"

namespace shoal {
namespace {

constexpr useconds_t kNapUs = 100;

/// True if an answer came before the deadline, or if every writer has closed its end.
bool wait_readable(int fd, int64_t deadline_ms) {
  const Deadline deadline = Deadline::after_ms(deadline_ms);
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    const int got = ::poll(&ready, 1, deadline.remaining_ms());
    if (got > 0) return true;
    if ((got < 0 && errno != EINTR) || deadline.passed()) return false;
  }
}

}  // namespace

pid_t fork_probe(const std::function<void()>& body) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) body();
  ::_exit(0);
}

int end_probe(pid_t child) {
  ::kill(child, SIGKILL);
  const Deadline deadline = Deadline::after_ms(kDeathMs);
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if ((ended < 0 && errno != EINTR) || deadline.passed()) return 0;
    ::usleep(kNapUs);
  }
}

ChildAnswer ask_child(const std::function<int()>& body, int64_t deadline_ms) {
  using End = ChildAnswer::End;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {End::kNotStarted, errno};
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t child = fork_probe([&] {
    const int value = body();
    [[maybe_unused]] const ssize_t wrote = ::write(write_end.get(), &value, sizeof value);
  });
  if (child < 0) return {End::kNotStarted, errno};
  write_end.reset();  // so that the pipe ends when the child dies
  int value = 0;
  const bool ended = wait_readable(read_end.get(), deadline_ms);
  const bool answered = ended && ::read(read_end.get(), &value, sizeof value) == sizeof value;
  const int status = end_probe(child);
  if (answered) return {End::kAnswered, value};
  if (!ended) return {End::kLate, 0};
  return {End::kKilled, WIFSIGNALED(status) ? WTERMSIG(status) : SIGKILL};
}

}  // namespace shoal
