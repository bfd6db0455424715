#pragma once

namespace shoal {

/// Sends protobuf's own log lines to ours, at debug level.
void route_protobuf_log();

}  // namespace shoal
