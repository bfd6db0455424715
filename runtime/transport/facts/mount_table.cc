#include "runtime/transport/facts/mount_table.h"

#include <algorithm>
#include <charconv>
#include <sys/sysmacros.h>

#include "runtime/transport/facts/fact_files.h"

namespace shoal {
namespace {

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

/// The kernel writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 3 < text.size() && is_octal(text[at + 1]) &&
        is_octal(text[at + 2]) && is_octal(text[at + 3])) {
      plain += static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 +
                                 (text[at + 3] - '0'));
      at += 3;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

/// "0:25" as st_dev; 0 for anything else.
uint64_t device_of(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return 0;
  unsigned major_number = 0, minor_number = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), text.data() + colon, major_number).ec != std::errc()) return 0;
  if (std::from_chars(text.data() + colon + 1, end, minor_number).ec != std::errc()) return 0;
  return makedev(major_number, minor_number);
}

}  // namespace

bool Mount::has_super_option(std::string_view option) const {
  const std::vector<std::string_view> all = parts_of(super_options, ',');
  return std::find(all.begin(), all.end(), option) != all.end();
}

std::vector<Mount> parse_mountinfo(std::string_view text) {
  std::vector<Mount> mounts;
  for (const std::string_view line : parts_of(text, '\n')) {
    // 36 35 98:0 /root /point options [optional fields...] - type source [super options]
    const std::vector<std::string_view> words = parts_of(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), std::string_view("-"));
    if (dash - words.begin() < 6 || words.end() - dash < 3) continue;
    Mount mount;
    mount.device = device_of(words[2]);
    mount.root = unescape(words[3]);
    mount.point = unescape(words[4]);
    mount.options = std::string(words[5]);
    mount.fs_type = std::string(dash[1]);
    if (words.end() - dash > 3) mount.super_options = std::string(dash[3]);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

bool is_below(std::string_view path, std::string_view folder) {
  if (folder == "/") return path.starts_with('/');
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

const Mount* find_mount(std::span<const Mount> mounts, std::string_view path, uint64_t device) {
  const Mount* best = nullptr;
  for (const Mount& mount : mounts) {
    if (!is_below(path, mount.point)) continue;
    if (best == nullptr) {
      best = &mount;
      continue;
    }
    // Some file systems (overlayfs, btrfs) give files another st_dev than their mount has. Then the
    // mount point alone decides.
    const bool fits = device != 0 && mount.device == device,
               best_fits = device != 0 && best->device == device;
    if (fits != best_fits ? fits : mount.point.size() >= best->point.size()) best = &mount;
  }
  return best;
}

}  // namespace shoal
