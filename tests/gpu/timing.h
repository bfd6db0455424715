#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/base/dtype.h"
#include "tests/gpu/one_device.h"

namespace shoal::gpu {

/// Device memory of `count` random elements of a type, because a device multiplies zeros with less
/// power and so faster. They repeat after a number that is no multiple of any row.
Result<Device::Memory> random_elements(OneDevice& one, Dtype type, int64_t count, uint64_t seed);

/// How often something is measured.
struct Turns {
  int count;       ///< after one that only warms up
  double seconds;  ///< about as long as one turn takes
};
/// What one call took, in microseconds: the median of the turns.
struct CallTime {
  /// From the first call of a turn until the device was done, divided by the calls.
  double device_us = 0;
  double enqueue_us = 0;  ///< of this, until the host had enqueued them all
};

/// Measures several works in turns, so that what happens to the machine happens to all of them.
/// enqueue(call): one call of a work, which is told how many there were before it in the turn.
using Work = std::function<Status(int call)>;
Result<std::vector<CallTime>> time_calls(OneDevice& one, const std::vector<Work>& works,
                                         const Turns& turns);

}  // namespace shoal::gpu
