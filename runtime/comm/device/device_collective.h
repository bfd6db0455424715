#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace shoal {

/// What moves partial sums between ranks that compute on devices. Pointers are to the device's
/// memory. Calls are made by every rank in the same order with the same sizes, from one thread, on
/// one stream. Work is enqueued and the call returns. Where the host mediates it waits for the
/// stream and for peers: until `until`, which ends the whole of a collective, also of one in
/// pieces, with DEADLINE_EXCEEDED. After an error the group is finished: it is killed.
class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;

  /// The rung's name.
  virtual const char* name() const = 0;
  virtual World world() const = 0;

  /// As Communicator::all_reduce: own [contributions of this rank][count], out [count].
  virtual Status enqueue_all_reduce(const ReducePlan& plan, const float* own, float* out,
                                    size_t count, void* stream, Deadline until) = 0;
  /// all: [world size][bytes_each], in rank order.
  virtual Status enqueue_all_gather(const void* mine, void* all, size_t bytes_each, void* stream,
                                    Deadline until) = 0;

  /// Asked while the host waits for the stream: a failure that the stream alone would not show.
  virtual Status check() = 0;

  /// Ranks whose part of the collective that runs, or has failed, has not come. A device does not
  /// tell whose is missing: everybody else's may be, unless the implementation knows better.
  virtual std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world().size; ++rank) {
      if (rank != world().rank) ranks.push_back(rank);
    }
    return ranks;
  }
};

/// A Communicator for host memory over it: what the CPU's model needs while its sums travel between
/// devices. Stages through pinned memory; a collective has timeout_ms from its begin to its end,
/// and then DEADLINE_EXCEEDED; a wait may also end with what check() or `interrupted` say.
Result<std::unique_ptr<Communicator>> make_staged_communicator(
    std::shared_ptr<Device> device, std::unique_ptr<DeviceCollective> collective,
    int64_t timeout_ms, Interrupted interrupted);

}  // namespace shoal
