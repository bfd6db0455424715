#pragma once
#include <cstddef>
#include <memory>

#include "runtime/comm/communicator.h"

namespace shoal {

/// A yardstick for benches, never a transport: what the all_reduce of two ranks costs on this
/// machine at the least. Copy in, one flag, read the peer's, add; no deadline, no sleep, no check,
/// whole messages only. A peer that dies leaves the other one polling, so whoever uses it kills its
/// ranks together.
///
/// `shared`: bare_exchange_bytes(max_bytes) zeroed bytes that both ranks map, aligned to a page;
/// they outlive it.
std::unique_ptr<Communicator> make_bare_exchange(int rank, std::byte* shared, size_t max_bytes);
size_t bare_exchange_bytes(size_t max_bytes);

}  // namespace shoal
