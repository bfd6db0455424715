#pragma once
#include <cstdint>
#include <functional>
#include <sys/types.h>

namespace shoal {

/// The outcome of something that was tried in a child process.
struct ChildAnswer {
  enum class End { kAnswered, kKilled, kLate, kNotStarted };
  End end = End::kNotStarted;
  /// What the body returned (kAnswered), the signal that killed the child (kKilled), or errno
  /// (kNotStarted).
  int value = 0;
};

/// Forks a child that runs the body and exits, and that is killed if its parent ends first. Call it
/// only while this process has one thread. Returns the pid; negative: errno is set.
pid_t fork_probe(const std::function<void()>& body);

/// Kills the child if it is still alive, and reaps it. Returns its status as waitpid gives it, or 0
/// if there was none within 2 s.
int end_probe(pid_t child);

/// Runs the body in a child and returns its answer. The child is killed at the deadline, and is
/// gone when this returns, unless the kernel does not let it die.
ChildAnswer ask_child(const std::function<int()>& body, int64_t deadline_ms);

}  // namespace shoal
