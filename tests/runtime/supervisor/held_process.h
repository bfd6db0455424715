#pragma once
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/fd.h"

namespace shoal {

/// A real process that SIGKILL does not end while this object holds it. A debugger (a child of this
/// program) keeps it at the last stop before its exit, as a driver or an unreachable file server
/// would.
class HeldProcess {
 public:
  explicit HeldProcess(pid_t process) {
    int held[2], release[2];
    if (::pipe(held) != 0 || ::pipe(release) != 0) return;
    debugger_ = ::fork();
    if (debugger_ == 0) {
      ::close(release[1]);
      const char answer = ::ptrace(PTRACE_SEIZE, process, nullptr, PTRACE_O_TRACEEXIT) == 0 ? 1 : 0;
      char end;
      [[maybe_unused]] const ssize_t told = ::write(held[1], &answer, 1),
                                     none = ::read(release[0], &end, 1);
      ::_exit(0);
    }
    const Fd answer_end(held[0]), other(held[1]), wait_end(release[0]);
    release_.reset(release[1]);
    char answer = 0;
    holds_ = ::read(answer_end.get(), &answer, 1) == 1 && answer == 1;
  }
  ~HeldProcess() { release(); }
  HeldProcess(const HeldProcess&) = delete;
  HeldProcess& operator=(const HeldProcess&) = delete;

  /// False if the kernel does not allow this here.
  bool holds() const { return holds_; }

  /// Lets the process end.
  void release() {
    release_.reset();
    if (debugger_ > 0) ::waitpid(debugger_, nullptr, 0);
    debugger_ = -1;
  }

 private:
  pid_t debugger_ = -1;
  Fd release_;
  bool holds_ = false;
};

}  // namespace shoal
