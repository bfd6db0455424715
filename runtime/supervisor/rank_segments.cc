#include "runtime/supervisor/rank_segments.h"

#include <filesystem>
#include <string_view>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal {

std::vector<SegmentId> segments_held_by(pid_t pid) {
  std::vector<SegmentId> held;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), error)) {
    char target[512];
    const ssize_t length = ::readlink(entry.path().c_str(), target, sizeof target);
    if (length <= 0) continue;
    const std::string_view path(target, static_cast<size_t>(length));
    // With " (deleted)" the file has no name any more, so that no name will be left.
    if (!path.starts_with("/dev/shm/") || path.ends_with(" (deleted)")) continue;
    struct stat facts;
    if (::stat(entry.path().c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
    held.push_back({static_cast<uint64_t>(facts.st_dev), static_cast<uint64_t>(facts.st_ino)});
  }
  return held;
}

}  // namespace shoal
