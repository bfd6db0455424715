#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// "2 slots of 4096 B and 256 B of control words for each of 4 ranks": the pool of shm, shm-lean
/// and memfd.
Consumer slot_pool(int world_size, size_t slot_bytes, int64_t inodes);

/// Opens a rank's end of such a pool. args.shm is the pool's descriptor.
Result<std::unique_ptr<Communicator>> open_slot_pool(OpenArgs args, const char* name);

/// RESOURCE_EXHAUSTED if the file size limit is below `bytes`.
Status check_file_size(int64_t bytes, const HostFacts& facts);

}  // namespace shoal
