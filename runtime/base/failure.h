#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include "runtime/base/status.h"

namespace shoal {

/// What a group of ranks is doing, from the first look at its files to its steps, in this order.
/// The front runs the first five phases, each rank runs those up to kWarmUp by itself, and in kStep
/// and kIdle all ranks work together.
enum class Phase : int32_t {
  kLook,      ///< reads parts of the model's files for the first time
  kBudget,    ///< compares what a transport needs with what is available
  kProbe,     ///< tries out what the host facts cannot answer
  kReserve,   ///< takes the memory of the transport
  kSpawn,     ///< starts the processes
  kOpen,      ///< connects the ranks
  kSelfTest,  ///< proves the transport bit for bit
  kLoad,      ///< reads weights
  kTouch,     ///< takes the memory that steps will use
  kWarmUp,    ///< runs a first step whose result nobody reads
  kStep,
  kIdle,  ///< waits for the next step
};

/// "budget", "self-test" and so on. For messages and JSON only: the program decides by the enum.
const char* phase_name(Phase phase);
/// What is done in it, for people who do not know the names: "the weights are being read".
const char* phase_meaning(Phase phase);

/// Whether ranks move bytes to each other in this phase. In the others a rank works alone.
constexpr bool moves_bytes(Phase phase) {
  return phase != Phase::kLook && phase != Phase::kSpawn && phase != Phase::kLoad &&
         phase != Phase::kTouch;
}

/// How many seconds a start spent in each of its phases. A phase that the start never entered has
/// no entry.
using PhaseSeconds = std::map<Phase, double>;

/// "own", "out_of_memory" and so on. For metrics and the log only.
const char* fault_name(Fault fault);

/// Why a group of ranks did not start, or why it ended.
struct Failure {
  Status why;
  Phase phase = Phase::kIdle;
  /// The rank that failed first or that the others wait for; kFrontRank if no rank can be named.
  int rank = kFrontRank;
  Fault fault = Fault::kOwn;
  uint64_t step = 0;  ///< in Phase::kStep: its number, from 1 on
  int signal = 0;     ///< that ended the rank; 0: none did, or nobody knows which

  bool ok() const { return why.ok(); }
};

/// A value, or the Failure that prevented it.
template <typename T>
class [[nodiscard]] Attempt : public Result<T, Failure> {
 public:
  using Result<T, Failure>::Result;

  /// Why the attempt failed. Precondition: !ok().
  Failure failure() const { return this->error(); }
  Status status() const { return this->error().why; }
};

}  // namespace shoal
