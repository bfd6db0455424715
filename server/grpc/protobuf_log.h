#pragma once
#include <string>

namespace shoal {

/// Sends protobuf's own log lines to ours, at debug level, and remembers the last one of each
/// thread.
void route_protobuf_log();

/// Takes what protobuf last complained of in this thread; empty: nothing. When a message cannot be
/// parsed, this is the only place where it says which field is to blame. For people only.
std::string take_protobuf_complaint();

}  // namespace shoal
