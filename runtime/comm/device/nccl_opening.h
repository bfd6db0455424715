#pragma once
#include <cstddef>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/device/device.h"

namespace shoal {

/// The most bytes that a rank sends in one all-gather. Bounds the buffer that receives them.
inline constexpr size_t kNcclPieceBytes = size_t{1} << 20;
/// The longest ncclAllReduce, so that no message is longer than those that the warm-up has tried.
inline constexpr size_t kNcclMostFloats = size_t{4} << 20;

/// A communicator that has run every kind of collective once, and what its collectives use.
struct OpenNccl {
  struct Buffers {
    Device::Memory mine;      ///< [kNcclPieceBytes]: this rank's planes of a piece
    Device::Memory gathered;  ///< [world size][kNcclPieceBytes]
    Device::Memory zeros;     ///< [kNcclPieceBytes]: sent by a rank that contributes nothing
  };
  NcclComm comm = nullptr;
  Buffers buffers;
};

struct NcclPlace {
  NcclUniqueId id;
  World world;
  bool reproducible = true;  ///< false: the warm-up also runs ncclAllReduce
};

/// Makes a blocking communicator, in which NCCL starts no thread for a collective, and warms it up:
/// NCCL takes its memory when it first uses an algorithm, and the size of a message chooses that.
///
/// A call of NCCL has no deadline, and it waits for peers that never come. So all of this runs in a
/// thread of its own, which selects the device for itself. After timeout_ms (DEADLINE_EXCEEDED), or
/// with the error of `waits`, which is told every 100 ms which call has not ended and NCCL's last
/// error, the thread is left behind with all that it uses, and the process must be ended without
/// its destructors. Other errors are NCCL's, with its last message.
Result<OpenNccl> open_nccl_communicator(const NcclApi& api, const Device& device,
                                        const NcclPlace& place, int64_t timeout_ms,
                                        const Waiting& waits);

}  // namespace shoal
