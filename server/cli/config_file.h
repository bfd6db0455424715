#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// One line of a configuration file: a key and what it is set to.
struct ConfigEntry {
  std::string key = {};                  ///< as it is written
  std::vector<std::string> values = {};  ///< one, or those of a list
  bool is_list = false;
  std::string where;  ///< "FILE:LINE"
};

/// The largest file that is read, in bytes. One with every flag has a twentieth of that.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 10;

/// The entries of a YAML document, which must be a map from words to words or lists of words.
/// INVALID_ARGUMENT "FILE:LINE: ...": it is no such document. No message has a value in it, because
/// a value may be a key of the API.
Result<std::vector<ConfigEntry>> parse_config(const std::string& text, const std::string& file);

/// The same for a file. INVALID_ARGUMENT also if it cannot be read or is too large; `flag` is what
/// that error calls the flag or variable that names the file.
Result<std::vector<ConfigEntry>> read_config(const std::string& file, std::string_view flag);

}  // namespace shoal
