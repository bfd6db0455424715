#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"

namespace shoal {

/// Where a rank stands in its collectives: what "who waits for whom" is told from.
struct WaitState {
  uint64_t collective =
      0;             ///< begun so far: the sequence number, the same on every rank that is as far
  std::string what;  ///< "all_reduce of 2048 floats"; empty before the first
  std::vector<int> waits_for;  ///< ranks whose part has not come; empty: it waits for nobody
};

/// Asked now and then during a long wait; an error ends the wait with it. For a worker: whether the
/// front has said to stop. Must return at once.
using Interrupted = std::function<Status()>;

/// Moves partial sums between the ranks of one tensor-parallel group. Collectives are called by
/// every rank in the same order with the same sizes, from one thread per rank. Every wait is a
/// bounded spin, then a sleep. All waits of one collective together end at the collective timeout
/// with DEADLINE_EXCEEDED, a wait also with UNAVAILABLE when a peer's end is closed; after an error
/// the group is finished (the front ends it).
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The rung's name as in --transport: "shm", "tcp".
  virtual const char* name() const = 0;
  virtual World world() const = 0;

  /// out[i] = the plan's tree sum over all ranks' contributions. own: [contributions of this
  /// rank][count], the planes contiguous; out: [count], the same bits on every rank; may not
  /// overlap own. Source of the order: reduce_tree.h.
  virtual Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) = 0;

  /// Rank root receives every rank's bytes, one after the other in rank order; sizes[r] is known to
  /// all. out is used on root only.
  virtual Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                        std::byte* out) = 0;

  /// Returns once every rank has called it.
  virtual Status barrier() = 0;

  /// Of the collective that runs, or ran last. Called by the rank's own thread: after a collective
  /// has failed, or from Interrupted.
  virtual WaitState wait_state() const = 0;
};

/// A group of one: sums its own contributions.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace shoal
