#pragma once
#include <cstdint>
#include <ctime>

namespace shoal {

/// How much processor time one thread may still spend on something whose cost nobody knows before.
/// Time in which the thread does not run costs nothing, so that a busy machine allows what an idle
/// one allows. Belongs to the thread that calls it first.
class CpuBudget {
 public:
  explicit CpuBudget(int64_t nanoseconds) : most_ns_(nanoseconds) {}

  /// Whether more than all of it has been spent since the first call.
  bool spent() {
    const int64_t now = thread_ns();
    if (start_ns_ == 0) start_ns_ = now;
    return now - start_ns_ > most_ns_;
  }

 private:
  static int64_t thread_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }

  int64_t most_ns_;
  int64_t start_ns_ = 0;  // when the clock was first read; 0: not yet
};

}  // namespace shoal
