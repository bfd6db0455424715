#pragma once
#include <optional>
#include <string_view>

#include "runtime/transport/needs/nccl_budget.h"
#include "runtime/transport/rungs/rung_context.h"

namespace shoal {

// What the ladder and its report know of NCCL's rungs beyond rung.h.

/// Where a rank's NCCL writes its log: the descriptor that it is born with (kWorkerLogFd of
/// runtime/control). NCCL expands %h and %p in the name, and nothing else.
inline constexpr const char* kNcclLogPath = "/proc/self/fd/6";

/// Need, channels and assumptions; nullopt: no rung of NCCL's.
std::optional<NcclNeed> nccl_rung_need(std::string_view rung, const RungContext& context);

/// What NCCL's log calls the connections of this rung, up to the slash: "P2P", "SHM", "NET". Empty:
/// no rung of NCCL's.
std::string_view nccl_rung_transport(std::string_view rung);

}  // namespace shoal
