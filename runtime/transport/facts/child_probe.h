#pragma once
#include <cstdint>
#include <functional>
#include <sys/types.h>

namespace shoal {

/// What came of something tried in a child.
struct ChildAnswer {
  enum class End { kAnswered, kKilled, kLate, kNotStarted };
  End end = End::kNotStarted;
  int value =
      0;  ///< what the body returned (kAnswered), the signal (kKilled), or errno (kNotStarted)
};

/// A child that ends with its parent. Call it while this process has one thread. Negative: errno is
/// set.
pid_t fork_probe(const std::function<void()>& body);

/// Kills the child, if it lives, and reaps it; its status as of waitpid, or 0: it could not be had
/// within 2 s.
int end_probe(pid_t child);

/// Runs the body in a child and gives its answer. The child is killed at the deadline, and gone
/// when this returns, if the kernel lets it go.
ChildAnswer ask_child(const std::function<int()>& body, int64_t deadline_ms);

}  // namespace shoal
