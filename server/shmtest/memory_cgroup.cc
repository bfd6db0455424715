#include "server/shmtest/memory_cgroup.h"

#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/transport/facts/oom_kills.h"
#include "server/shmtest/os_failure.h"

namespace shoal::shmtest {
namespace {

struct Place {
  std::string folder;
  bool v2 = false;
};

bool has_word(const std::string& text, const std::string& word, char separator) {
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    if (part == word) return true;
  }
  return false;
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

/// Where the cgroup hierarchy is mounted. For v1 it is the hierarchy of the memory controller.
std::optional<std::string> mount_point(bool v2) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream in(line);
    std::string device, folder, type, options;
    in >> device >> folder >> type >> options;
    if (v2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory", ','))
      return folder;
  }
  return std::nullopt;
}

/// This process's own group in the hierarchy, from /proc/self/cgroup. Its lines are
/// "ID:CONTROLLERS:PATH"; the line of v2 has no controllers.
std::string own_path(bool v2) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (v2 ? controllers.empty() : has_word(controllers, "memory", ','))
      return line.substr(second + 1);
  }
  return "/";
}

/// Finds a group in which a child group would have a memory limit.
Result<Place> find_place() {
  if (const std::optional<std::string> root = mount_point(/*v2=*/false)) {
    const std::string own = *root + own_path(false);
    // In a container the path may be that of the host, while the mount shows only our own group as
    // its root.
    return Place{::access(own.c_str(), F_OK) == 0 ? own : *root, false};
  }
  const std::optional<std::string> root = mount_point(/*v2=*/true);
  if (!root) return Status::error(Code::kFailedPrecondition, "no cgroup file system is mounted");
  std::string own = *root + own_path(true);
  // A group that holds processes gives its children no controllers, unless it is the root. Then
  // take the parent, so that the new group becomes a sibling.
  for (int up = 0; up < 2; ++up) {
    if (has_word(first_line(own + "/cgroup.subtree_control"), "memory", ' '))
      return Place{own, true};
    if (own.size() <= root->size()) break;
    own.resize(own.find_last_of('/'));
  }
  return Status::error(Code::kFailedPrecondition,
                       "no cgroup here gives its children the memory controller");
}

Status write_file(const std::string& path, const std::string& value) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.valid() || ::write(file.get(), value.data(), value.size()) < 0)
    return failed("write " + path);
  return {};
}

}  // namespace

Result<MemoryCgroup> MemoryCgroup::create(uint64_t limit_bytes) {
  SHOAL_ASSIGN_OR_RETURN(const Place place, find_place());
  std::string folder = cat(place.folder, "/shoal-shmtest-", ::getpid());
  if (::mkdir(folder.c_str(), 0755) != 0) return failed("make the cgroup " + folder);
  MemoryCgroup group(std::move(folder), place.v2);
  const std::string limit = cat(limit_bytes);
  SHOAL_RETURN_IF_ERROR(
      write_file(group.folder_ + (place.v2 ? "/memory.max" : "/memory.limit_in_bytes"), limit));
  // Swap would hide the limit. If there is no swap this file does not exist.
  (void)write_file(group.folder_ + (place.v2 ? "/memory.swap.max" : "/memory.memsw.limit_in_bytes"),
                   place.v2 ? "0" : limit);
  return group;
}

MemoryCgroup::~MemoryCgroup() {
  if (folder_.empty()) return;
  // Killed processes leave their group a moment after waitpid() reports them, so try again for a
  // while.
  for (int tries = 0; ::rmdir(folder_.c_str()) != 0 && errno == EBUSY && tries < 200; ++tries)
    ::usleep(5000);
}

Status MemoryCgroup::join() const {
  return write_file(folder_ + "/cgroup.procs", "0");
}

uint64_t MemoryCgroup::oom_kills() const {
  return static_cast<uint64_t>(oom_kills_of_group(folder_).value_or(0));
}

}  // namespace shoal::shmtest
