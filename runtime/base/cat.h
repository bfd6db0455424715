#pragma once
#include <sstream>
#include <string>

namespace shoal {

/// The arguments, each written with operator<<, one after the other. For messages, not for hot
/// paths.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

}  // namespace shoal
