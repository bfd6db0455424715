#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/exchange.h"

namespace shoal {

inline constexpr size_t kCmaSlotBytes = 256 * 1024;

/// Bytes of private memory that one rank needs: control words, its own two slots, and one mirror
/// slot per peer.
size_t cma_rank_bytes(int world_size, size_t slot_bytes);
/// Bytes of the shared memory for the group's control words. Pages of 4 KiB hold those of 16 ranks.
size_t cma_page_bytes(int world_size);

/// Opens a communicator whose ranks read each other's private slots with process_vm_readv, in the
/// steps that shm_communicator.h describes. page_fd, page_bytes: fresh, zeroed shared memory of
/// cma_page_bytes for the control words, the same for all ranks. If page_bytes is 0, there is no
/// such memory and the control words are read like the slots; a wait then costs system calls, and
/// up to a millisecond more. slot_bytes: the same on every rank. timeout_ms: limits each
/// collective, and also the destructor, which waits until the peers have read the slots that it is
/// about to free. PERMISSION_DENIED: a peer's memory may not be read; the message lists what may
/// forbid it. UNAVAILABLE: a peer has gone. RESOURCE_EXHAUSTED: no memory. INVALID_ARGUMENT: the
/// page is too small, or the ranks were given different settings. Otherwise the exchange's error.
Result<std::unique_ptr<Communicator>> open_cma_communicator(World world, int page_fd,
                                                            size_t page_bytes, size_t slot_bytes,
                                                            int64_t timeout_ms,
                                                            const Exchange& exchange,
                                                            Interrupted interrupted = {});

}  // namespace shoal
