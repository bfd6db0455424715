#include "server/cli/shutdown_watchdog.h"

#include <unistd.h>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/wait.h"

namespace shoal {

ShutdownWatchdog::ShutdownWatchdog(std::function<void()> tidy)
    : tidy_(std::move(tidy)), thread_([this] { watch(); }) {}

ShutdownWatchdog::~ShutdownWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void ShutdownWatchdog::expect(std::string what, int64_t limit_ms, ExitCode code,
                              std::function<std::string()> details) {
  {
    const std::lock_guard lock(mutex_);
    part_ = Part{std::move(what), limit_ms, Deadline::after_ms(limit_ms), code, std::move(details)};
  }
  changed_.notify_one();
}

void ShutdownWatchdog::watch() {
  std::unique_lock lock(mutex_);
  wait_until_ready(changed_, lock, [this] { return over_ || part_; });
  // expect() may set another deadline meanwhile.
  while (!over_ && !part_->deadline.passed()) {
    changed_.wait_for(lock, std::chrono::milliseconds(part_->deadline.remaining_ms()));
  }
  if (over_) return;
  const std::string details = part_->details ? part_->details() : std::string();
  log_error(
      cat("the shutdown hangs: ", part_->what, " has taken more than ", part_->limit_ms, " ms",
          details.empty() ? "" : " (", details, details.empty() ? "" : ")", "; leaving without it"),
      {{"event", "shutdown_hangs"},
       {"part", part_->what},
       {"limit_ms", part_->limit_ms},
       {"exit_code", static_cast<int>(part_->code)}});
  tidy_();
  ::_exit(static_cast<int>(part_->code));
}

}  // namespace shoal
