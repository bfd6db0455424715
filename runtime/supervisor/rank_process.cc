#include "runtime/supervisor/rank_process.h"

#include <fstream>
#include <sys/wait.h>

#include "runtime/base/cat.h"

namespace shoal {

bool RankProcess::reap(int options) {
  siginfo_t info{};
  if (reaped || ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | options) != 0 || info.si_pid == 0) {
    return false;
  }
  reaped = true;
  exit_code = info.si_code;
  exit_status = info.si_status;
  return true;
}

char RankProcess::state() const {
  if (reaped) return '?';
  std::ifstream file(cat("/proc/", process.pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

}  // namespace shoal
