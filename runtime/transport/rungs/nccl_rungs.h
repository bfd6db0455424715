#pragma once
#include <optional>
#include <string_view>

#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

// What the ladder and its report need to know of NCCL's rungs beyond rung.h.

/// Where a rank's NCCL writes its log: to the descriptor that the rank inherits for it
/// (kWorkerLogFd of runtime/control). NCCL expands %h and %p in the name, and nothing else.
inline constexpr const char* kNcclLogPath = "/proc/self/fd/6";

/// Need, of all communicators, channels and assumptions; nullopt: not one of NCCL's rungs.
std::optional<NcclNeed> nccl_rung_need(std::string_view rung, const RungContext& context);

/// What NCCL's log calls the connections of this rung, up to the slash: "P2P", "SHM", "NET". Empty:
/// not one of NCCL's rungs.
std::string_view nccl_rung_transport(std::string_view rung);

/// Whether NCCL makes files of this many bytes in /dev/shm, by itself or in one of these rungs.
bool is_known_nccl_file(int64_t bytes);

}  // namespace shoal
