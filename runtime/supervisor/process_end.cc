#include "runtime/supervisor/process_end.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sys/wait.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// How often to look at a child whose end no descriptor reports.
constexpr int kLookForEndMs = 10;

}  // namespace

std::optional<ProcessEnd> take_end(pid_t child) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG) != 0) {
    if (errno != EINTR)
      return ProcessEnd();  // ECHILD: if SIGCHLD is ignored, the kernel keeps no end
  }
  if (info.si_pid == 0) return std::nullopt;
  return ProcessEnd{info.si_code, info.si_status};
}

std::optional<ProcessEnd> await_end(pid_t child, const Fd& pidfd, Deadline deadline) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  for (;;) {
    if (const auto end = take_end(child)) return end;
    if (deadline.passed()) return std::nullopt;
    if (ended.revents != 0)
      // It is dead, but a debugger is told before us, and poll would return at once: do not ask it
      // again.
      ended.fd = -1;
    ::poll(&ended, 1,
           ended.fd < 0 ? deadline.remaining_ms(kLookForEndMs) : deadline.remaining_ms());
  }
}

std::string describe_exit(int code, int status) {
  if (code == 0) return "has ended, and how was not kept (SIGCHLD is ignored)";
  if (code == CLD_EXITED) return cat("exited with code ", status);
  return cat("was killed by signal ", status, " (", ::strsignal(status), ")");
}

bool uses_processor(pid_t process) {
  std::error_code error;
  std::filesystem::directory_iterator task(cat("/proc/", process, "/task"), error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::ifstream file(task->path() / "stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');  // the name may hold anything
    if (name_end != std::string::npos && text.substr(name_end).starts_with(") R")) return true;
  }
  return false;
}

}  // namespace shoal
