#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/running_clock.h"
#include "runtime/base/world.h"
#include "runtime/comm/spin.h"

namespace shoal {

// A rank's progress word is the number of steps it has published, times four, plus two flags.
/// Set by a peer before it sleeps, so that the next publication wakes it.
inline constexpr uint32_t kSleepers = 1;
inline constexpr uint32_t kClosed = 2;  ///< the rank has left; no further step will come
inline constexpr uint32_t kStep = 4;

/// Whether the rank with this progress word has published at least this many steps. Numbers wrap.
inline bool reached(uint32_t word, uint32_t steps) {
  return static_cast<int32_t>((word & ~(kStep - 1)) - steps * kStep) >= 0;
}

/// A rank's words in shared memory. Aligned to 128 bytes, because processors fetch neighbouring
/// cache lines in pairs.
struct alignas(128) RankControl {
  uint32_t progress;
  /// Number of steps whose slots the rank has read. Only kept if a rank's slots vanish when it
  /// leaves (cma).
  uint32_t done;
  /// For each slot, the collective that the rank believes this step belongs to. It is on the same
  /// cache line as `progress`, so a peer that has read that word has this one too.
  uint64_t tags[2];
  /// For each slot, when the step was published, in nanoseconds of RunningClock::wall(). 0: no peer
  /// slept then, so that nobody needs to know. On the same cache line, too.
  int64_t ready_at[2];
  alignas(128) CpuMask cpus;
};
static_assert(sizeof(RankControl) == 256);

/// The ranks' control words in memory that all ranks map. Polling needs no system call, and
/// sleeping uses a futex. Used by one thread.
class SharedFlags {
 public:
  static constexpr bool kPollsAreCalls = false;

  /// controls: world.size zeroed RankControls that outlive this object.
  SharedFlags(World world, std::byte* controls)
      : rank_(world.rank), controls_(reinterpret_cast<RankControl*>(controls)) {
    // Peers read it after the first step has been published.
    controls_[rank_].cpus = calling_thread_cpus();
  }

  /// Acquire: what the rank wrote to its slot before it published this word is visible, on a weakly
  /// ordered processor too.
  uint32_t word(int rank) const {
    return std::atomic_ref<uint32_t>(controls_[rank].progress).load(std::memory_order_acquire);
  }
  /// The collective that `rank` is in, in the step with that number (from 0). Valid once the rank's
  /// word has reached that step. Relaxed, because the acquire of that word orders it, and the rank
  /// writes the entry again only after it has read our own next word.
  uint64_t tag(int rank, uint32_t step) const {
    return std::atomic_ref<uint64_t>(controls_[rank].tags[step % 2])
        .load(std::memory_order_relaxed);
  }
  /// When `rank` published that step, if a peer slept until it did, or else 0. Valid as tag() is.
  RunningClock::duration ready_at(int rank, uint32_t step) const {
    return RunningClock::duration(std::atomic_ref<int64_t>(controls_[rank].ready_at[step % 2])
                                      .load(std::memory_order_relaxed));
  }
  /// steps: the number of steps published, this one included.
  void publish(uint32_t steps, uint64_t tag) {
    RankControl& mine = controls_[rank_];
    const std::atomic_ref<uint32_t> progress(mine.progress);
    // Only for sleepers is the clock read, because they cost a system call anyway. One that comes
    // between this look and the exchange finds no moment. That is a microsecond, unless a quota of
    // processor time stops this rank just there: then its last sleep, of up to kSliceMs, does not
    // count.
    const bool awaited = (progress.load(std::memory_order_relaxed) & kSleepers) != 0;
    std::atomic_ref<int64_t>(mine.ready_at[(steps - 1) % 2])
        .store(awaited ? RunningClock::wall().count() : 0, std::memory_order_relaxed);
    std::atomic_ref<uint64_t>(mine.tags[(steps - 1) % 2]).store(tag, std::memory_order_relaxed);
    // Release: slot, tag and time come before the word, and so do our reads of the peers' slots,
    // which they write again when they see it. Acquire: a sleeper's flag. An exchange instead of a
    // store, because it reads and clears that flag in the same instant, so that no sleeper is
    // missed.
    const uint32_t before = progress.exchange(steps * kStep, std::memory_order_acq_rel);
    if (before & kSleepers) wake();
  }
  void close() {
    const std::atomic_ref<uint32_t> progress(controls_[rank_].progress);
    // A change of the same word as in publish(), and for the same reasons: a sleeper's flag is set
    // either before this change, which then sees it, or after it, which then fails (sleep()).
    // Release, so that a peer that finds the word closed finds the steps published before it too.
    if (progress.fetch_or(kClosed, std::memory_order_acq_rel) & kSleepers) wake();
  }
  /// Release: our reads of the peers' slots come before it.
  void set_done(uint32_t steps) {
    std::atomic_ref<uint32_t>(controls_[rank_].done).store(steps, std::memory_order_release);
  }
  /// Acquire: the peer's reads of our slots are over before this rank lets go of them.
  uint32_t done(int rank) const {
    return std::atomic_ref<uint32_t>(controls_[rank].done).load(std::memory_order_acquire);
  }
  const CpuMask& cpus(int rank) const { return controls_[rank].cpus; }

  /// Sleeps until the rank's word has reached `steps` or is closed, or the time has passed. May
  /// return earlier.
  void sleep(int rank, uint32_t steps, int timeout_ms);

 private:
  void wake();

  int rank_;
  RankControl* controls_;
};

}  // namespace shoal
