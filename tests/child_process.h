#pragma once
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {

/// A real process that calls `body` again and again until this object ends.
class ChildProcess {
 public:
  explicit ChildProcess(void (*body)()) : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) body();
    }
  }
  ~ChildProcess() {
    if (pid_ <= 0) return;  // kill() takes 0 and -1 for many processes
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

inline void sleep_on() {
  ::pause();
}

/// A loop without an effect may be left out by the compiler.
inline void spin_on() {
  static volatile int spins = 0;
  spins = spins + 1;
}

}  // namespace shoal
