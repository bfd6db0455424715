#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// Small files of /proc and /sys. What cannot be read is empty: a fact that is not known forbids
/// nothing.

/// At most 4 MiB of it.
std::string text_of(const std::string& path);

/// The number the file begins with; nullopt for "max" and everything else that is none.
std::optional<int64_t> number_in(const std::string& path);

/// The number that follows the key at the start of a line: ("inactive_file 4096\n",
/// "inactive_file") is 4096.
std::optional<int64_t> number_after(std::string_view text, std::string_view key);

/// Empty parts are kept, but for one after a final separator.
std::vector<std::string_view> split(std::string_view text, char separator);

bool path_exists(const std::string& path);

/// How many names in a folder are the prefix and then digits: ("/dev", "nvidia") counts nvidia0,
/// not nvidiactl.
int count_numbered(const std::string& folder, std::string_view prefix);

}  // namespace shoal
