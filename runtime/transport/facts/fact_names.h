#pragma once
#include <string>
#include <string_view>

#include "runtime/transport/facts/host_facts.h"

namespace shoal {

// The names of the facts' enums in JSON and in messages. from_text returns false if the text is not
// one of these names.

std::string to_text(LeftFileState state);  ///< "stale", "in use", "other user", "unknown"
bool from_text(std::string_view text, LeftFileState* state);

std::string to_text(GpuErrorAt at);  ///< "", "find", "load", "facts", "probe"
bool from_text(std::string_view text, GpuErrorAt* at);

/// "ok", "corrupt 17 bytes", "hung", "not tried", "failed: ...". from_text does not change the two
/// devices.
std::string to_text(const GpuPeerVerdict& verdict);
bool from_text(std::string_view text, GpuPeerVerdict* verdict);

}  // namespace shoal
