#include "server/shmtest/own_dev.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "runtime/base/fd.h"
#include "server/shmtest/os_failure.h"

namespace shoal::shmtest {
namespace {

namespace fs = std::filesystem;

/// An open file of the machine's /dev, which can still be reached through its descriptor once /dev
/// is covered.
struct Node {
  std::string name;
  bool folder = false;
  Fd fd;
};

bool usual(const std::string& name) {
  for (const char* known :
       {"null", "zero", "full", "random", "urandom", "tty", "pts", "mqueue", "infiniband", "dri"}) {
    if (name == known) return true;
  }
  return name.starts_with("nvidia");
}

std::vector<Node> open_usual_nodes() {
  std::vector<Node> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    std::error_code ignored;
    if (!usual(name) || entry.is_symlink(ignored)) continue;
    Fd fd(::open(entry.path().c_str(), O_PATH | O_CLOEXEC));
    if (fd.valid()) nodes.push_back({name, entry.is_directory(ignored), std::move(fd)});
  }
  return nodes;
}

Status bind_node(const Node& node) {
  const std::string target = "/dev/" + node.name;
  if (node.folder) {
    if (::mkdir(target.c_str(), 0755) != 0) return failed("make " + target);
  } else {
    const Fd file(::open(target.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    if (!file.valid()) return failed("make " + target);
  }
  const std::string source = cat("/proc/self/fd/", node.fd.get());
  if (::mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0)
    return failed("bind " + target);
  return {};
}

}  // namespace

Status mount_own_dev(bool with_shm) {
  const std::vector<Node> nodes = open_usual_nodes();
  if (::mount("dev", "/dev", "tmpfs", MS_NOSUID, "mode=0755,size=64k") != 0)
    return failed("mount a tmpfs on /dev");
  for (const Node& node : nodes) SHOAL_RETURN_IF_ERROR(bind_node(node));
  const std::pair<const char*, const char*> links[] = {{"/proc/self/fd", "/dev/fd"},
                                                       {"/proc/self/fd/0", "/dev/stdin"},
                                                       {"/proc/self/fd/1", "/dev/stdout"},
                                                       {"/proc/self/fd/2", "/dev/stderr"},
                                                       {"pts/ptmx", "/dev/ptmx"}};
  for (const auto& [target, name] : links) {
    if (::symlink(target, name) != 0) return failed(cat("link ", name));
  }
  if (with_shm && ::mkdir("/dev/shm", 01777) != 0) return failed("make /dev/shm");
  return {};
}

}  // namespace shoal::shmtest
