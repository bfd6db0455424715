#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/memory/shm_segment.h"

namespace shoal {

/// The shared memory of the group that was started last, which the front holds on to, so that a
/// restart cannot find that others have taken it. Not thread-safe.
class KeptPool {
 public:
  /// For StartControl::on_left_behind of the group that is started next. May be called at any time,
  /// even after this object is gone.
  std::function<void()> on_left_behind();

  /// Keeps the pool of that group, for the next one over the same rung. An empty segment means that
  /// the rung has no pool; what was kept before is given back.
  void keep(std::string rung, ShmSegment shm);

  bool holds(const std::string& rung) const { return shm_.size() > 0 && rung == rung_; }

  /// The pool, full of zeros, if it is one of this rung. nullopt, with the reason in the log: it
  /// cannot be cleared, or a rank that hangs in the kernel may still write to it. It is given back
  /// then.
  std::optional<ShmSegment> take(const std::string& rung);

  void give_back() { shm_ = ShmSegment(); }

 private:
  std::string rung_;
  ShmSegment shm_;
  std::shared_ptr<std::atomic<bool>> left_behind_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace shoal
