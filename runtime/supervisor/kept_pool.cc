#include "runtime/supervisor/kept_pool.h"

#include <utility>

#include "runtime/base/log.h"

namespace shoal {

std::function<void()> KeptPool::on_left_behind() {
  left_behind_ = std::make_shared<std::atomic<bool>>(false);
  return [flag = left_behind_] { *flag = true; };
}

void KeptPool::keep(std::string rung, ShmSegment shm) {
  rung_ = std::move(rung);
  shm_ = std::move(shm);
}

std::optional<ShmSegment> KeptPool::take(const std::string& rung) {
  if (!holds(rung)) return std::nullopt;
  ShmSegment shm = std::exchange(shm_, ShmSegment());
  if (*left_behind_) {
    log_warning(
        cat("a rank that cannot be ended still maps the pool of ", rung, "; a new one is made"));
    return std::nullopt;
  }
  if (const Status cleared = shm.clear(); !cleared.ok()) {
    log_warning(cat("the pool of ", rung,
                    " cannot be used again, a new one is made: ", cleared.to_string()));
    return std::nullopt;
  }
  return shm;
}

}  // namespace shoal
