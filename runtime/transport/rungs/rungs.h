#pragma once
#include "runtime/transport/rungs/rung.h"

namespace shoal {

// One each from the file of its name; rung.cc puts them in order.
extern const Rung kShmRung;
extern const Rung kShmLeanRung;
extern const Rung kMemfdRung;
extern const Rung kCmaRung;
extern const Rung kTcpRung;
extern const Rung kCudaIpcRung;
extern const Rung kHostMemfdRung;
// These from nccl_rungs.cc.
extern const Rung kNcclP2pRung;
extern const Rung kNcclShmRung;
extern const Rung kNcclShmLeanRung;
extern const Rung kNcclSocketRung;

/// "2 slots of 4096 B and 256 B of control words for each of 4 ranks": the pool of shm, shm-lean
/// and memfd.
Consumer slot_pool(int world_size, size_t slot_bytes, int64_t inodes);

/// A rank's end of such a pool, whose descriptor args.shm is.
Result<std::unique_ptr<Communicator>> open_slot_pool(OpenArgs args, const char* name);

/// RESOURCE_EXHAUSTED where the file size limit is below `bytes`.
Status check_file_size(int64_t bytes, const HostFacts& facts);

}  // namespace shoal
