#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/world.h"
#include "runtime/comm/spin.h"

namespace shoal {

// A rank's progress word: the number of steps it has published, times four, and two flags.
inline constexpr uint32_t kSleepers =
    1;  ///< set by a peer before it sleeps: the next publication must wake it
inline constexpr uint32_t kClosed = 2;  ///< the rank has gone; no further step will come
inline constexpr uint32_t kStep = 4;

/// Whether the word is of a rank that has published that many steps. Numbers wrap.
inline bool reached(uint32_t word, uint32_t steps) {
  return static_cast<int32_t>((word & ~(kStep - 1)) - steps * kStep) >= 0;
}

/// A rank's words in shared memory. 128: neighbouring lines are fetched in pairs.
struct alignas(128) RankControl {
  uint32_t progress;
  uint32_t done;     ///< steps whose slots the rank has read; kept where a leaving rank takes its
                     ///< slots along
  uint64_t tags[2];  ///< per slot, what the rank believes this step to be; on the progress word's
                     ///< line, so free to read
  alignas(128) CpuMask cpus;
};
static_assert(sizeof(RankControl) == 256);

/// The ranks' control words in memory that all of them map: polled for nothing, slept on with a
/// futex. One thread.
class SharedFlags {
 public:
  /// controls: world.size zeroed RankControls that outlive it.
  SharedFlags(World world, std::byte* controls)
      : rank_(world.rank), controls_(reinterpret_cast<RankControl*>(controls)) {
    controls_[rank_].cpus = calling_thread_cpus();  // published with the first step
  }

  uint32_t word(int rank) const {
    return std::atomic_ref<uint32_t>(controls_[rank].progress).load(std::memory_order_acquire);
  }
  /// What `rank` is in, in the step with that number (from 0); valid once the word has reached it.
  uint64_t tag(int rank, uint32_t step) const {
    return std::atomic_ref<uint64_t>(controls_[rank].tags[step % 2])
        .load(std::memory_order_relaxed);
  }
  /// steps: published with this one.
  void publish(uint32_t steps, uint64_t tag) {
    RankControl& mine = controls_[rank_];
    std::atomic_ref<uint64_t>(mine.tags[(steps - 1) % 2]).store(tag, std::memory_order_relaxed);
    // An exchange rather than a store: it takes the sleepers' flag in the same instant, so none is
    // missed.
    const uint32_t before =
        std::atomic_ref<uint32_t>(mine.progress).exchange(steps * kStep, std::memory_order_acq_rel);
    if (before & kSleepers) wake();
  }
  void close() {
    const std::atomic_ref<uint32_t> progress(controls_[rank_].progress);
    if (progress.fetch_or(kClosed, std::memory_order_acq_rel) & kSleepers) wake();
  }
  void set_done(uint32_t steps) {
    std::atomic_ref<uint32_t>(controls_[rank_].done).store(steps, std::memory_order_release);
  }
  uint32_t done(int rank) const {
    return std::atomic_ref<uint32_t>(controls_[rank].done).load(std::memory_order_acquire);
  }
  const CpuMask& cpus(int rank) const { return controls_[rank].cpus; }

  /// Until the rank's word has reached `steps` or is closed, or the time has passed; it may return
  /// before.
  void sleep(int rank, uint32_t steps, int timeout_ms);

 private:
  void wake();

  int rank_;
  RankControl* controls_;
};

}  // namespace shoal
