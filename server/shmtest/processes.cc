#include "server/shmtest/processes.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <dirent.h>
#include <fstream>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal::shmtest {
namespace {

struct Stat {
  std::string name;
  char state = 'X';
  pid_t parent = 0;
};

/// What /proc/PID/stat says. nullopt: there is no such process any more.
std::optional<Stat> stat_of(pid_t pid) {
  std::ifstream in(cat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(in, text, '\0');
  // The name may contain any character, even parentheses.
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 >= text.size())
    return std::nullopt;
  return Stat{text.substr(open + 1, close - open - 1), text[close + 2],
              std::atoi(text.c_str() + close + 4)};
}

/// Goes from parent to parent. If a parent ends meanwhile, its children get another parent, so the
/// way is tried again.
bool descends_from(pid_t pid, pid_t ancestor) {
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    std::optional<Stat> at = stat_of(pid);
    if (!at) return false;
    while (at && at->parent != ancestor && at->parent > 0) at = stat_of(at->parent);
    if (at) return at->parent == ancestor;
  }
  return false;
}

}  // namespace

std::vector<Process> living_processes() {
  std::vector<Process> found;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = ::readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 1) continue;
    const std::optional<Stat> stat = stat_of(pid);
    if (stat && stat->state != 'Z' && stat->state != 'X') found.push_back({pid, stat->name});
  }
  ::closedir(proc);
  return found;
}

std::vector<Process> living_descendants() {
  std::vector<Process> found = living_processes();
  std::erase_if(found,
                [own = ::getpid()](const Process& one) { return !descends_from(one.pid, own); });
  return found;
}

void end_descendants() {
  for (;;) {
    const std::vector<Process> living = living_descendants();
    if (living.empty()) return;
    for (const Process& one : living) ::kill(one.pid, SIGKILL);
    // The children of the one that ends become ours.
    while (::waitpid(-1, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace shoal::shmtest
