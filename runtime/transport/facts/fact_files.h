#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Each of the *_facts.h gathers the facts about one subject for gather_host_facts. None of them
// fails: what cannot be read stays at its default.

/// Where /proc, /sys and /dev are. Tests point it at recorded trees. What is tried rather than read
/// (statvfs, sockets, memfd, limits) always concerns this process itself.
struct SystemPaths {
  std::string root;  ///< put before every path; "": the running system
};

// The functions below read small files of /proc and /sys. A file that cannot be read counts as
// empty, because an unknown fact forbids nothing.

/// The text of the file, about 4 MiB of it at most.
std::string text_of(const std::string& path);

/// The number that the file begins with; nullopt for "max" and everything else that is not a
/// number.
std::optional<int64_t> number_in(const std::string& path);

/// The number that follows the key at the start of a line: ("inactive_file 4096\n",
/// "inactive_file") is 4096.
std::optional<int64_t> number_after(std::string_view text, std::string_view key);

/// Like split (runtime/base/split.h), but without the empty part at the end, because the last line
/// of a file ends in a separator too.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

bool path_exists(const std::string& path);

/// Counts the names in a folder that are the prefix followed by digits: ("/dev", "nvidia") counts
/// nvidia0, not nvidiactl.
int count_numbered(const std::string& folder, std::string_view prefix);

}  // namespace shoal
