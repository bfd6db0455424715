#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/tcp/tcp_mesh.h"

namespace shoal {

/// A communicator over one loopback connection per pair of ranks. listener: this rank's of
/// make_tcp_listeners; ports: of all. group_key: the same for all ranks, another for every group.
/// timeout_ms: of the handshake, and of one collective. Errors as connect_tcp_mesh.
///
/// How: every message is a small header (which collective, which operation, how many bytes) and its
/// payload; a rank sends and receives with all peers at once, so no order of calls can block. Small
/// messages: all planes to everybody, everybody sums everything. Large ones, from three ranks on:
/// slice r of all planes to rank r, which sums it and sends the sum to everybody.
Result<std::unique_ptr<Communicator>> open_tcp_communicator(World world, Fd listener,
                                                            std::vector<int> ports,
                                                            int64_t timeout_ms, uint64_t group_key,
                                                            Interrupted interrupted = {});

}  // namespace shoal
