#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

/// One line of /proc/self/mountinfo, with its octal escapes resolved.
struct Mount {
  uint64_t device = 0;  ///< as st_dev
  std::string root;     ///< the directory of the file system that is mounted
  std::string point;    ///< where it is mounted
  std::string options;  ///< of this mount
  std::string fs_type;
  std::string super_options;  ///< of the file system

  bool has_super_option(std::string_view option) const;
};

/// The mounts in the order of the file, in which a later mount hides an earlier one on the same
/// point. Lines that are not understood are left out.
std::vector<Mount> parse_mountinfo(std::string_view text);

/// The mount that holds an absolute path without links: the one with the longest mount point above
/// it, and the last one among equals. Mounts of the path's st_dev come first, because the longest
/// one may be hidden by another mount above it. device: the st_dev, or 0 if it is not known.
/// nullptr: there is none.
const Mount* find_mount(std::span<const Mount> mounts, std::string_view path, uint64_t device);

/// True if path is folder or something below it.
bool is_below(std::string_view path, std::string_view folder);

}  // namespace shoal
