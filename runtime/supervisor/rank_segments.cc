#include "runtime/supervisor/rank_segments.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/deadline.h"
#include "runtime/supervisor/process_state.h"

namespace shoal {
namespace {

constexpr int kStopMs = 200;
constexpr std::chrono::milliseconds kStopLook{1};

/// Calls `take` with what /proc calls each regular file in /dev/shm that the process holds open,
/// and with its facts.
void for_each_segment(pid_t pid,
                      const std::function<void(std::string_view, const struct stat&)>& take) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), error)) {
    char target[512];
    const ssize_t length = ::readlink(entry.path().c_str(), target, sizeof target);
    if (length <= 0) continue;
    const std::string_view path(target, static_cast<size_t>(length));
    struct stat facts;
    if (!path.starts_with("/dev/shm/") || ::stat(entry.path().c_str(), &facts) != 0 ||
        !S_ISREG(facts.st_mode))
      continue;
    take(path, facts);
  }
}

SegmentId id_of(const struct stat& facts) {
  return {static_cast<uint64_t>(facts.st_dev), static_cast<uint64_t>(facts.st_ino)};
}

/// True once no thread of the process runs any more, or the process is gone.
bool stands_still(pid_t pid) {
  std::error_code error;
  for (const auto& thread :
       std::filesystem::directory_iterator(cat("/proc/", pid, "/task"), error)) {
    const auto id = static_cast<pid_t>(std::atoi(thread.path().filename().c_str()));
    if (constexpr std::string_view kStill = "TtZX?";
        kStill.find(process_state(id)) == std::string_view::npos)
      return false;
  }
  return true;
}

void stop(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) ::kill(pid, SIGSTOP);
  const Deadline deadline = Deadline::after_ms(kStopMs);
  for (const pid_t pid : pids)
    while (!stands_still(pid) && !deadline.passed()) std::this_thread::sleep_for(kStopLook);
}

}  // namespace

std::vector<SegmentId> segments_held_by(const std::vector<pid_t>& pids, Look look) {
  if (look == Look::kStopped) stop(pids);
  std::vector<SegmentId> held;
  for (const pid_t pid : pids) {
    for_each_segment(pid, [&](std::string_view path, const struct stat& facts) {
      // With " (deleted)" the file has no name any more, so that no name will be left.
      if (!path.ends_with(" (deleted)")) held.push_back(id_of(facts));
    });
  }
  return held;
}

int64_t nccl_bytes_held_by(const std::vector<pid_t>& pids) {
  constexpr int64_t kBlockBytes = 512;  // of st_blocks, on every file system
  std::set<SegmentId> seen;
  int64_t bytes = 0;
  for (const pid_t pid : pids) {
    for_each_segment(pid, [&](std::string_view path, const struct stat& facts) {
      if (path.starts_with("/dev/shm/nccl-") && seen.insert(id_of(facts)).second)
        bytes += facts.st_blocks * kBlockBytes;
    });
  }
  return bytes;
}

}  // namespace shoal
