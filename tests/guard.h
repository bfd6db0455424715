#pragma once
#include <chrono>
#include <cstdint>
#include <thread>

namespace shoal {

/// How long a test waits for what must happen before it gives up. It costs nothing as long as the
/// test passes. No verdict may depend on it: what a test wants to see happens soon, or never.
/// Sanitizers and emulated processors are slow. GUARD in tests/e2e/harness.py is the same.
#if defined(SHOAL_SANITIZED) || defined(SHOAL_EMULATED)
inline constexpr int64_t kGuardMs = 300'000;
#else
inline constexpr int64_t kGuardMs = 60'000;
#endif
inline constexpr double kGuardSeconds = kGuardMs / 1e3;

/// Waits until the condition holds. False: it never did.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kGuardMs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace shoal
