#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace shoal {

/// Moves partial sums between ranks that compute on devices. Pointers are to the device's memory.
/// Every rank makes the calls in the same order with the same sizes, from one thread, on one
/// stream. A call enqueues the work and returns. If the host takes part in the transfer, the call
/// first waits for the stream and for the peers, and fails with DEADLINE_EXCEEDED at `until`, which
/// limits the whole collective even if it is made in pieces. After an error the group cannot be
/// used any more, and the front kills it.
class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;

  /// The rung's name as given to --transport.
  virtual const char* name() const = 0;
  virtual World world() const = 0;

  /// Like Communicator::all_reduce. own: [contributions of this rank][count]; out: [count]. In a
  /// group of one rank the single contribution is the sum. If out is own, nothing is enqueued
  /// there. In larger groups out must not be own.
  virtual Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out,
                                    size_t count, void* stream, Deadline until) = 0;
  /// True: all_reduce gives the bits of the plan's tree. False: its sums are rounded in an order of
  /// their own, which is the same on every rank.
  virtual bool sums_by_plan() const { return true; }
  /// mine: [bytes_each]; all: [world size][bytes_each], in rank order.
  virtual Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                                    Deadline until) = 0;

  /// Called while the host waits for the stream. Returns a failure that the stream alone would not
  /// show.
  virtual Status check() = 0;

  /// Communicator::waited; nullopt if the host does not wait for the peers.
  virtual std::optional<Waited> waited() const { return std::nullopt; }

  /// Ranks whose part is missing in the collective that runs or has failed. nullopt: a device does
  /// not report that.
  virtual std::optional<std::vector<int>> missing() const { return std::nullopt; }
};

/// What is known of a rank that waits in this collective, or for a device that may be in it.
WaitState wait_state_in(const DeviceCollective& collective, uint64_t number, std::string what);

}  // namespace shoal
