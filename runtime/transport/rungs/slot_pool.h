#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// How many bytes the kernel charges for a file of this size: whole pages of this machine. A page
/// may have 64 KiB.
int64_t in_pages(size_t bytes, const HostFacts& facts);

/// "2 slots of 4096 B and 256 B of control words for each of 4 ranks": the pool of shm, shm-lean
/// and memfd.
Consumer slot_pool(const RungContext& context, size_t slot_bytes, int64_t inodes);

/// Opens a rank's end of such a pool. args.shm is the pool's descriptor.
Result<std::unique_ptr<Communicator>> open_slot_pool(OpenArgs args, const char* name);

/// RESOURCE_EXHAUSTED if the file size limit is below `bytes`.
Status check_file_size(int64_t bytes, const HostFacts& facts);

/// Whether a memfd of this many bytes can be made. UNAVAILABLE, with errno: none can be made at
/// all. Otherwise as check_file_size.
Status check_memfd(int64_t bytes, const HostFacts& facts);

}  // namespace shoal
