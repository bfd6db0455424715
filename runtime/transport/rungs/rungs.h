#pragma once
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// The table's entry of a struct with the static members kName, need, probe, prepare and open.
template <typename T>
constexpr Rung rung_of(DeviceKind device, RungCost cost = {}) {
  return {T::kName, T::need, T::probe, T::prepare, T::open, device == DeviceKind::kCuda,
          nullptr,  cost};
}

// Each of these is defined in the file of its name. rung.cc puts them in order.
extern const Rung kShmRung;
extern const Rung kShmLeanRung;
extern const Rung kMemfdRung;
extern const Rung kCmaRung;
extern const Rung kTcpRung;
extern const Rung kCudaIpcRung;
extern const Rung kHostMemfdRung;
// These are defined in nccl_rungs.cc.
extern const Rung kNcclP2pRung;
extern const Rung kNcclShmRung;
extern const Rung kNcclShmLeanRung;
extern const Rung kNcclSocketRung;

}  // namespace shoal
