#pragma once
#include <cstdint>

namespace shoal {

/// What SlotCommunicator does wrong on purpose, once, so that the self-test can be seen to notice.
/// Tests alone: without the compile definition SHOAL_PLANTED_FAULTS, which only a test's copy of
/// this library has, nothing of it exists.
enum class FaultKind {
  kNone,
  kDroppedWrite,  ///< the second half of what `rank` puts into its slot does not get there
  kStaleRead,     ///< whoever reads rank's slot gets that of the step before
  kSwappedSlot,   ///< whoever reads rank's slot gets that of the next rank
};

struct PlantedFault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;              ///< whose part is wrong
  uint32_t after_steps = 0;  ///< in the first step from this one on in which such an access happens
};

#ifdef SHOAL_PLANTED_FAULTS
/// Set before a group's communicators are made; each commits it once.
inline PlantedFault planted_fault;
#endif

}  // namespace shoal
