#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/wait_time.h"

namespace shoal {

class DeviceCollective;

/// How far a rank has got with its collectives. From all ranks' states, the front reports which
/// rank waits for which.
struct WaitState {
  /// Number of collectives begun so far, and so the number of the latest one. All ranks give the
  /// same collective the same number.
  uint64_t collective = 0;
  std::string what;            ///< "all_reduce of 2048 floats"; empty before the first
  std::vector<int> waits_for;  ///< ranks whose part has not arrived; empty if it waits for none
  /// True: nobody can tell whose part has not arrived, so waits_for names all other ranks.
  bool guessed = false;
};

/// Called every kSliceMs during a long wait. An error ends the wait and becomes its result. A
/// worker uses it to check whether the front has told it to stop. Must return at once.
using Interrupted = std::function<Status()>;
/// The same, told what the caller waits for, in words for people.
using Waiting = std::function<Status(const std::string& where)>;

/// During a long wait, Interrupted is called each time this many milliseconds have passed; cma then
/// also checks whether the peers still exist. That is seldom enough to cost nothing, and often
/// enough for a stop to seem immediate.
inline constexpr int kSliceMs = 100;

/// Says when a long wait has to look up. It goes by the wall's clock, because a look decides
/// nothing.
class NextLook {
 public:
  /// True once in each slice.
  bool due() {
    const Clock::time_point now = Clock::now();
    if (now - looked_ < std::chrono::milliseconds(kSliceMs)) return false;
    looked_ = now;
    return true;
  }

 private:
  Clock::time_point looked_ = Clock::now();
};

/// Moves partial sums between the ranks of one tensor-parallel group. Every rank calls the
/// collectives in the same order with the same sizes, from one thread. Every wait is a bounded spin
/// and then a sleep. The collective timeout limits all waits of one collective together; when it
/// expires, the collective fails with DEADLINE_EXCEEDED. A wait fails with UNAVAILABLE if a peer
/// has closed its end. After an error the group cannot be used any more, and the front ends it.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// The rung's name as given to --transport: "shm", "tcp".
  virtual const char* name() const = 0;
  virtual World world() const = 0;

  /// out[i] = the plan's tree sum over all ranks' contributions. own: [contributions of this
  /// rank][count], one plane after the other; out: [count], which may not overlap own and gets the
  /// same bits on every rank. reduce_tree.h explains where the order of the sum comes from.
  virtual Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) = 0;

  /// Rank root receives every rank's bytes, one after the other in rank order. sizes must be the
  /// same on every rank: sizes[r] bytes come from rank r. out is used on root only, where `mine`
  /// may already lie at its place in out.
  virtual Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                        std::byte* out) = 0;

  /// Returns once every rank has called it.
  virtual Status barrier() = 0;

  /// The state of the collective that runs or has run last. May only be called from the rank's own
  /// thread: after a collective has failed, or inside Interrupted.
  virtual WaitState wait_state() const = 0;

  /// How long this rank has waited for others in all collectives so far. A wait ends when the parts
  /// of the others are ready, even if this rank is held up at that moment. The rank that comes last
  /// waits for nobody. A wait that ends within a few polls does not count. nullopt: this process
  /// cannot tell, because devices wait for each other.
  virtual std::optional<Waited> waited() const { return std::nullopt; }

  /// The same group's collectives on memory of the ranks' devices; nullptr if the ranks' processes
  /// move host memory alone. It lives as long as this object. A collective of one must have ended
  /// (its stream has been waited for) before one of the other begins.
  virtual DeviceCollective* on_devices() { return nullptr; }
};

}  // namespace shoal
