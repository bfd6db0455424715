#include "runtime/supervisor/kept_pool.h"

#include <utility>

#include "runtime/base/log.h"

namespace shoal {

std::function<void()> KeptPool::on_left_behind() {
  next_left_behind_ = std::make_shared<std::atomic<bool>>(false);
  return [flag = next_left_behind_] { *flag = true; };
}

void KeptPool::keep(std::string rung, ShmSegment shm) {
  rung_ = std::move(rung);
  shm_ = std::move(shm);
  left_behind_ = next_left_behind_;
}

Result<std::optional<ShmSegment>> KeptPool::take(const std::string& rung) {
  if (!holds(rung)) return std::optional<ShmSegment>();
  if (*left_behind_) {
    log_warning(cat("a rank that cannot be ended still maps the pool of ", rung,
                    ", so a new pool is made"));
    give_back();
    return std::optional<ShmSegment>();
  }
  if (const Status cleared = shm_.clear(); !cleared.ok()) {
    if (cleared.code() == Code::kResourceExhausted) return cleared;
    log_warning(cat("the pool of ", rung,
                    " cannot be used again, so a new pool is made: ", explained(cleared)));
    give_back();
    return std::optional<ShmSegment>();
  }
  return std::optional<ShmSegment>(std::exchange(shm_, ShmSegment()));
}

}  // namespace shoal
