#pragma once
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {

inline void sleep_on() {
  ::pause();
}

/// A loop without an effect may be left out by the compiler.
inline void spin_on() {
  static volatile int spins = 0;
  spins = spins + 1;
}

/// A real process that calls `prepare` once, and then `go_on` again and again until this object
/// ends.
class ChildProcess {
 public:
  /// Waits until `prepare` has returned. ok() is what it returned.
  explicit ChildProcess(const std::function<bool()>& prepare, void (*go_on)() = sleep_on) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0 || (pid_ = ::fork()) < 0) std::abort();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const char answer = prepare() ? 'y' : 'n';
      if (::write(ready[1], &answer, 1) != 1) ::_exit(1);
      for (;;) go_on();
    }
    ::close(ready[1]);
    char answer = 'n';
    ok_ = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
    ::close(ready[0]);
  }
  explicit ChildProcess(void (*go_on)()) : ChildProcess([] { return true; }, go_on) {}
  ~ChildProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  pid_t pid() const { return pid_; }
  bool ok() const { return ok_; }

 private:
  pid_t pid_ = -1;
  bool ok_ = false;
};

}  // namespace shoal
