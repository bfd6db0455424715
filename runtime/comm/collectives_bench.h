#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"

namespace shoal {

struct CollectiveTiming {
  std::string transport;
  int world_size = 0;
  size_t bytes = 0;  ///< of the result; a rank's contribution has as many
  double median_us = 0;
  double p99_us = 0;
};

/// From a flag to a large chunk of prefill; 8 KiB is a decode step of a small model, 1 MiB a chunk
/// of its prefill.
inline constexpr size_t kTimedBytes[] = {
    64, 1024, 8 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024};

/// Times all_reduce back to back, one contribution per rank: for each size `repeats` calls after a
/// tenth as many to warm up (fewer for large sizes, so that a size moves at most 4 GiB). Every rank
/// calls it at the same time; each has its own figures, rank 0's are the ones to report. Errors:
/// the communicator's; INVALID_ARGUMENT where a size is not a whole number of floats or repeats is
/// below 1.
Result<std::vector<CollectiveTiming>> time_collectives(
    Communicator& communicator, std::span<const size_t> sizes_bytes = kTimedBytes,
    int repeats = 20'000);

}  // namespace shoal
