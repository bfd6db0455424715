#pragma once
#include <sstream>
#include <string>

namespace shoal {

/// The arguments as one text, each written with operator<<. Meant for messages: it is too slow for
/// hot paths.
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

}  // namespace shoal
