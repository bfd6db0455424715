#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/memory/shm_segment.h"

namespace shoal {

/// The shared memory of the last group that ran, which the front holds on to, so that nobody else
/// can take it before a restart. Not thread-safe.
class KeptPool {
 public:
  /// To be called when a rank of the group that is started next is left behind. May be called at
  /// any time, even after this object is gone.
  std::function<void()> on_left_behind();

  /// Keeps the pool of that group, for the next one over the same rung. An empty segment means that
  /// the rung has no pool; what was kept before is given back.
  void keep(std::string rung, ShmSegment shm);

  bool empty() const { return shm_.size() == 0; }
  bool holds(const std::string& rung) const { return shm_.size() > 0 && rung == rung_; }

  /// The pool, full of zeros, if it is one of this rung. nullopt, with the reason in the log: a
  /// rank that hangs in the kernel may still write to it, or its memory is broken. In that case it
  /// is given back. RESOURCE_EXHAUSTED: it cannot be written to now, but is kept.
  Result<std::optional<ShmSegment>> take(const std::string& rung);

  void give_back() { shm_ = ShmSegment(); }

 private:
  std::string rung_;
  ShmSegment shm_;
  using Flag = std::shared_ptr<std::atomic<bool>>;
  Flag left_behind_ = std::make_shared<std::atomic<bool>>(false);  // by the group that had shm_
  Flag next_left_behind_ = left_behind_;                           // by the group that starts now
};

}  // namespace shoal
