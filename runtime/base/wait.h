#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "runtime/base/deadline.h"

namespace shoal {

/// Waits until ready() is true, which is asked with the lock held. The lock is released while
/// waiting, and notify_one() or notify_all() after a change of what ready() reads ends the wait at
/// once.
///
/// Use this instead of condition_variable::wait(lock, ready). That function is in libstdc++.so with
/// a symbol version (GLIBCXX_3.4.30) that only the libstdc++ of GCC 12 has, and
/// condition_variable_any calls it too. One call would keep the packaged program from starting on
/// every distribution with an older one. The timed waits are inline over glibc and need no
/// symbol of libstdc++. The timeout of an hour only makes the loop ask ready() again.
template <typename Ready>
void wait_until_ready(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                      Ready ready) {
  while (!changed.wait_for(lock, std::chrono::hours(1), ready)) continue;
}

/// The same with a deadline: returns false if ready() is not true by then.
template <typename Ready>
bool wait_until_ready(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                      Deadline deadline, Ready ready) {
  constexpr int kHourMs = 3'600'000;
  while (!ready()) {
    if (deadline.passed()) return false;
    changed.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms(kHourMs)));
  }
  return true;
}

}  // namespace shoal
