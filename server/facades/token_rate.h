#pragma once
#include <mutex>

#include "runtime/base/deadline.h"
#include "server/serving/request_figures.h"

namespace shoal {

/// How many tokens a second are generated, from one look to the next. Thread-safe.
class TokenRate {
 public:
  /// Looks that follow each other within a second return what the earlier one did, so that several
  /// clients that poll do not shorten each other's time.
  double look(const RequestCounts& counts) {
    const std::lock_guard lock(mutex_);
    const double seconds = seconds_since(since_);
    if (seconds < 1) return rate_;
    rate_ = static_cast<double>(counts.generation_tokens - tokens_) / seconds;
    tokens_ = counts.generation_tokens;
    since_ = Clock::now();
    return rate_;
  }

 private:
  std::mutex mutex_;
  Clock::time_point since_ = Clock::now();
  int64_t tokens_ = 0;
  double rate_ = 0;
};

}  // namespace shoal
