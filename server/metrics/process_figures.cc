#include "server/metrics/process_figures.h"

#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/base/process_memory.h"

namespace shoal {
namespace {

/// The beginning of a file of /proc; empty if it cannot be read.
std::string read_proc(const char* path) {
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t size = file.valid() ? ::read(file.get(), text, sizeof text) : -1;
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : std::string();
}

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

std::optional<int64_t> count_open_fds() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return std::nullopt;
  int64_t count = -1;  // without that of the folder itself
  while (const dirent* entry = ::readdir(folder.get())) count += entry->d_name[0] != '.' ? 1 : 0;
  return count;
}

}  // namespace

ProcessFigures read_process_figures() {
  ProcessFigures figures;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  figures.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  if (const std::optional<ProcessMemory> memory = read_process_memory()) {
    figures.virtual_bytes = memory->virtual_bytes;
    figures.resident_bytes = memory->resident_bytes;
  }
  figures.open_fds = count_open_fds();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    figures.max_fds = static_cast<int64_t>(limit.rlim_cur);
  return figures;
}

double process_start_time_s() {
  const double now_s = seconds_of(CLOCK_REALTIME);
  const std::string stat = read_proc("/proc/self/stat");
  const size_t name_end = stat.rfind(')');  // the name, in parentheses, may hold anything
  if (name_end == std::string::npos) return now_s;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  // The state behind the name is the third field, and the time since boot the 22nd.
  for (int field = 3; field < 22; ++field) fields >> skipped;
  int64_t ticks = 0;
  if (!(fields >> ticks)) return now_s;
  const double after_boot_s =
      static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return now_s - (seconds_of(CLOCK_BOOTTIME) - after_boot_s);
}

}  // namespace shoal
