#include "runtime/comm/slot_flags.h"

#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shoal {

// The futex calls are not the private variants, because processes share the word. The kernel
// identifies it by the file's inode.

void SharedFlags::wake() {
  ::syscall(SYS_futex, &controls_[rank_].progress, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedFlags::sleep(int rank, uint32_t steps, int timeout_ms) {
  uint32_t* word = &controls_[rank].progress;
  const std::atomic_ref<uint32_t> progress(*word);
  // Acquire is more than is needed, because the caller reads the word again before any slot.
  uint32_t seen = progress.load(std::memory_order_acquire);
  if (reached(seen, steps) || (seen & kClosed)) return;
  if (!(seen & kSleepers)) {
    // That no sleeper is missed needs no order between two words: the flag is in the word that the
    // rank changes, all changes of one word have an order on every processor, and both sides read
    // and write it in one access. If this exchange comes first, the rank's next change sees the
    // flag and wakes the sleeper. If the rank's change comes first, this exchange fails. And the
    // kernel, which compares the word with `seen` under the lock that FUTEX_WAKE takes, does not
    // sleep if the rank has changed it since. A peer that acquires the word with this flag in it
    // still sees what the rank released, because a change that reads and writes continues the
    // release that it read.
    if (!progress.compare_exchange_strong(seen, seen | kSleepers, std::memory_order_acq_rel))
      return;
    seen |= kSleepers;
  }
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  // The result does not matter: the caller reads the word again.
  ::syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace shoal
