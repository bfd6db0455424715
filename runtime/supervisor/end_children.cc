#include "runtime/supervisor/end_children.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/supervisor/rank_segments.h"

namespace shoal {
namespace {

constexpr int kChildrenDeathMs = 1'000;
constexpr std::chrono::milliseconds kChildrenLook{2};

/// The processes that any thread of this one has started. Empty if /proc does not show them.
std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream list(thread.path() / "children");
    for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  }
  return pids;
}

/// True once it is dead, whoever reaps it. Its descriptors are closed then.
bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == child;
}

}  // namespace

void end_children_at_once() {
  const Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (null.valid()) ::dup2(null.get(), STDERR_FILENO);
  const std::vector<pid_t> pids = children();
  const std::vector<SegmentId> segments = segments_held_by(pids, Look::kStopped);
  for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  const Deadline deadline = Deadline::after_ms(kChildrenDeathMs);
  while (!std::all_of(pids.begin(), pids.end(), has_ended) && !deadline.passed())
    std::this_thread::sleep_for(kChildrenLook);
  (void)remove_recorded("/dev/shm", segments);
}

}  // namespace shoal
