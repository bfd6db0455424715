#pragma once
#include <cstdint>

namespace shoal {

/// What SlotCommunicator does wrong on purpose, once, so that tests can check that the self-test
/// notices it. The code that does so is compiled only with SHOAL_PLANTED_FAULTS, which only a
/// test's own copy of this library defines.
enum class FaultKind {
  kNone,
  kDroppedWrite,  ///< the second half of what `rank` writes into its slot is lost
  kStaleRead,     ///< a peer that reads rank's slot gets the slot of the step before
  kSwappedSlot,   ///< a peer that reads rank's slot gets the slot of the next rank
};

struct PlantedFault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;  ///< whose data is wrong
  /// The fault fires at the first such access in this step or a later one.
  uint32_t after_steps = 0;
};

#ifdef SHOAL_PLANTED_FAULTS
/// To be set before a group's communicators are made. Each communicator injects the fault once.
inline PlantedFault planted_fault;
#endif

}  // namespace shoal
