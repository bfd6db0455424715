#pragma once
#include <string_view>
#include <vector>

namespace shoal {

/// The parts of `text` between separators. Empty parts are kept, so an empty text gives one empty
/// part. The parts point into `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace shoal
