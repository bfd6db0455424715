#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "server/commands/bench_text.h"

namespace shoal {

struct CollectiveTiming {
  std::string transport;
  int world_size = 0;
  size_t bytes = 0;  ///< of the result; each rank's contribution has the same size
  double median_us = 0;
  double p99_us = 0;
};

/// Message sizes from a single flag to a large prefill chunk. For a small model, 8 KiB is a decode
/// step and 1 MiB a prefill chunk.
inline constexpr size_t kTimedBytes[] = {
    64, 1024, 8 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024};

/// Times all_reduce calls back to back, with one contribution per rank. For each size it makes
/// `repeats` calls, after repeats / 10 calls to warm up. Large sizes get fewer repeats, so that a
/// size moves at most 4 GiB. Every rank must call it at the same time. Each rank gets its own
/// figures; report those of rank 0. Errors: the communicator's; INVALID_ARGUMENT if a size is not a
/// whole number of floats or repeats is below 1.
Result<std::vector<CollectiveTiming>> time_collectives(
    Communicator& communicator, std::span<const size_t> sizes_bytes = kTimedBytes,
    int repeats = 20'000);

/// The medians of all rounds for one transport and one size.
struct CollectiveRow {
  std::string transport;
  size_t bytes = 0;
  std::vector<double> medians_us;
  double p99_us = 0;  ///< the lowest p99 of all rounds
};

/// The rows below the load that was there before the start, and below them what the yardstick among
/// them is; or one JSON object.
std::string collectives_report(const std::vector<CollectiveRow>& rows, const MachineLoad& load,
                               int world_size, bool json);

}  // namespace shoal
