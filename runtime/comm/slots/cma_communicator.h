#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"

namespace shoal {

inline constexpr size_t kCmaSlotBytes = 256 * 1024;

/// Private memory of one rank: a page of control words, its two slots, and a mirror of each peer's.
size_t cma_rank_bytes(int world_size, size_t slot_bytes);
/// The shared page (pages, beyond 16 ranks) of the group's control words.
size_t cma_page_bytes(int world_size);

/// Brings a few bytes and gets every rank's, in rank order.
using CmaExchange = std::function<Result<std::vector<std::string>>(std::string mine)>;

/// A communicator whose ranks read each other's private slots with process_vm_readv, in the steps
/// of shm_communicator.h. page_fd, page_bytes: fresh, zeroed shared memory of cma_page_bytes for
/// the control words, the same for all ranks; page_bytes 0: none can be had, and the control words
/// are read like the slots (a wait then costs system calls, and up to a millisecond more).
/// slot_bytes: the same on every rank. timeout_ms: of one collective, and of the destructor, which
/// stays until the peers have read what goes with it. PERMISSION_DENIED: a peer's memory may not be
/// read; says where to look. UNAVAILABLE: a peer has gone. RESOURCE_EXHAUSTED: no memory.
/// INVALID_ARGUMENT: the page is too small, or the ranks differ in what they were given. Else the
/// exchange's error.
Result<std::unique_ptr<Communicator>> open_cma_communicator(World world, int page_fd,
                                                            size_t page_bytes, size_t slot_bytes,
                                                            int64_t timeout_ms,
                                                            const CmaExchange& exchange,
                                                            Interrupted interrupted = {});

}  // namespace shoal
