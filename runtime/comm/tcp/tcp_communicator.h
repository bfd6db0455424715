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

/// Opens a communicator that has one loopback connection per pair of ranks. listener: this rank's
/// from make_tcp_listeners; ports: those of all ranks. group_key: the same for all ranks, and
/// different for every group. timeout_ms: for the handshake, and for each collective. Errors are
/// those of connect_tcp_mesh.
///
/// How it works: every message is a small header (which collective, which operation, how many
/// bytes) and its payload. A rank sends to and receives from all peers at once, so no order of
/// calls can block. Small messages take one round: every rank sends all its planes to every peer
/// and sums everything. In groups of three or more ranks, large messages take two: rank r receives
/// slice r of all planes, sums it and sends the sum to every peer.
Result<std::unique_ptr<Communicator>> open_tcp_communicator(World world, Fd listener,
                                                            std::vector<int> ports,
                                                            int64_t timeout_ms, uint64_t group_key,
                                                            Interrupted interrupted = {});

}  // namespace shoal
