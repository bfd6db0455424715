#pragma once
#include <cstddef>
#include <memory>

#include "runtime/comm/communicator.h"

namespace shoal {

/// Its name in the rows of a bench.
inline constexpr char kBareExchange[] = "bare";

/// A yardstick for benches, never a transport: the least that an all_reduce of two ranks can cost
/// on this machine. It copies in, sets one flag, reads the peer's data and adds; it has no
/// deadline, no sleep and no checks, and moves whole messages only. If a rank dies its peer polls
/// forever, so the caller must kill both ranks together.
///
/// `shared`: bare_exchange_bytes(max_bytes) zeroed bytes that both ranks map, aligned to a page.
/// They must outlive the communicator.
std::unique_ptr<Communicator> make_bare_exchange(int rank, std::byte* shared, size_t max_bytes);
size_t bare_exchange_bytes(size_t max_bytes);

}  // namespace shoal
