#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// What the self-test measured on this rank: the best of several rounds. For people only, because
/// machines are noisy: nothing is decided by it.
struct SelfTestFigures {
  double latency_us = 0;   ///< all_reduce of 8 KiB
  double bytes_per_s = 0;  ///< of an all_reduce of 1 MiB: bytes of the result over the time
  bool noisy = false;      ///< the rounds of one of the two differ by more than a factor of 2
  double seconds = 0;      ///< the whole test
};

/// Proves a fresh communicator bit for bit. Seeded patterns go between every pair of ranks in both
/// directions (gather to every root) and through the real collective (all_reduce with even and
/// uneven contributions, and sizes around a cache line, a slot and several slots). The patterns are
/// new in every round, so that a dropped write, a stale read and a swapped slot each give wrong
/// bits. If the communicator's sums go in an order of their own
/// (DeviceCollective::sums_by_plan), all patterns have sums that are exact in any order. Every rank
/// calls it at the same time with the same seed. It takes under 0.3 s at 8 ranks. `moved` (may be
/// empty) is called after every collective, so that the caller can tell slow from stuck, because
/// the test takes long if ranks share few processors. An error of it ends the test. DATA_LOSS:
/// wrong bits. The message has the collective, the rank whose part is wrong (if that can be found
/// out), the first wrong element and both values. Any other error is the communicator's.
Result<SelfTestFigures> self_test(Communicator& communicator, uint64_t seed,
                                  const std::function<Status()>& moved = {});

/// What the times of several rounds say, of which others on the machine slow most down.
struct BestRound {
  double us = 0;       ///< the shortest
  bool noisy = false;  ///< the longest is more than twice as long
};

/// The best of these rounds, in microseconds, and whether they differ too much to be believed.
/// Precondition: there is at least one.
BestRound best_round(std::span<const double> rounds_us);

/// The memory that it takes of each rank: all ranks' planes of its largest sum, which the rank
/// makes for itself, and the expected and the actual sum.
int64_t self_test_bytes(int world_size);

}  // namespace shoal
