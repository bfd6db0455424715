#include "runtime/supervisor/process_state.h"

#include <ctime>
#include <fstream>
#include <limits>
#include <string>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// True if one of the file's lines is the text.
bool has_line(const std::string& path, std::string_view text) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line == text) return true;
  }
  return false;
}

}  // namespace

char process_state(pid_t process) {
  std::ifstream file(cat("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // the name may hold anything
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

bool is_stopped(pid_t process) {
  const char state = process_state(process);
  return state == 'T' || state == 't';
}

bool is_frozen(pid_t process) {
  std::ifstream groups(cat("/proc/", process, "/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    // "NUMBER:CONTROLLERS:PATH", and the controllers of version 2 are none.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1);
    if (controllers == "freezer" &&
        has_line(cat("/sys/fs/cgroup/freezer", path, "/freezer.state"), "FROZEN"))
      return true;
    if (!controllers.empty()) continue;
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      if (has_line(cat(root, path, "/cgroup.events"), "frozen 1")) return true;
    }
  }
  return false;
}

bool dumps_core(pid_t process) {
  return has_line(cat("/proc/", process, "/status"), "CoreDumping:\t1");
}

std::optional<std::chrono::nanoseconds> processor_time(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &used) != 0)
    return std::nullopt;
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

int64_t private_bytes(pid_t process) {
  std::ifstream file(cat("/proc/", process, "/status"));
  int64_t bytes = 0;
  for (std::string name; file >> name;) {
    int64_t kib = 0;
    if ((name == "RssAnon:" || name == "VmSwap:") && file >> kib) bytes += kib << 10;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return bytes;
}

int64_t private_bytes(const std::vector<pid_t>& processes) {
  int64_t sum = 0;
  for (const pid_t process : processes) {
    const int64_t bytes = private_bytes(process);
    if (bytes == 0) return 0;
    sum += bytes;
  }
  return sum;
}

}  // namespace shoal
