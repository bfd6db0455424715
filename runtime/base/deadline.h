#pragma once
#include <chrono>
#include <cstdint>

namespace shoal {

using Clock = std::chrono::steady_clock;

/// A moment by which something must have happened. A value; infinite() never passes.
class Deadline {
 public:
  /// From a hundred years on it is infinite(), so that no number a user gives overflows the clock.
  static Deadline after_ms(int64_t milliseconds) {
    if (milliseconds >= kForeverMs) return infinite();
    return Deadline(Clock::now() + std::chrono::milliseconds(milliseconds < 0 ? 0 : milliseconds));
  }
  /// The same in seconds; NaN is infinite().
  static Deadline after_s(double seconds) {
    if (!(seconds < kForeverMs / 1e3)) return infinite();
    return after_ms(seconds < 0 ? 0 : static_cast<int64_t>(seconds * 1e3));
  }
  static Deadline infinite() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
  /// What is left in milliseconds, rounded up, at least 0 and at most limit: ready for poll(). With
  /// an infinite deadline it is limit.
  int remaining_ms(int limit = 1 << 30) const {
    if (at_ == Clock::time_point::max()) return limit;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(left < 0 ? 0 : left > limit ? limit : left);
  }
  Clock::time_point at() const { return at_; }

 private:
  static constexpr int64_t kForeverMs = int64_t{100} * 365 * 24 * 3600 * 1000;
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

inline Deadline sooner(Deadline a, Deadline b) {
  return b.at() < a.at() ? b : a;
}

/// Seconds since start, for figures in logs and reports.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace shoal
