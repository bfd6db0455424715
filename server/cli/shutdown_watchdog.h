#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/deadline.h"
#include "server/cli/exit_code.h"

namespace shoal {

/// Ends the process if a part of its shutdown takes too long, because a shutdown may wait for
/// libraries, and theirs has no bound. Its thread exists from the start, so that it needs neither
/// a thread nor memory when both may be short.
class ShutdownWatchdog {
 public:
  /// tidy: what has to be done before the process ends. It is called from the watchdog's thread and
  /// must end by itself.
  explicit ShutdownWatchdog(std::function<void()> tidy);
  ~ShutdownWatchdog();  ///< the shutdown is over
  ShutdownWatchdog(const ShutdownWatchdog&) = delete;
  ShutdownWatchdog& operator=(const ShutdownWatchdog&) = delete;

  /// The part named `what` has begun, and the one before it is over. If it takes longer than
  /// `limit_ms`, the log says so together with what `details` returns, and the process ends with
  /// `code` at once. `details` is called from the watchdog's thread and must not block.
  void expect(std::string what, int64_t limit_ms, ExitCode code,
              std::function<std::string()> details = {});

 private:
  struct Part {
    std::string what;
    int64_t limit_ms = 0;
    Deadline deadline = Deadline::infinite();
    ExitCode code = ExitCode::kOk;
    std::function<std::string()> details;
  };
  void watch();

  const std::function<void()> tidy_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Part> part_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace shoal
