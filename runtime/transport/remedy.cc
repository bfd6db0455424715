#include "runtime/transport/remedy.h"

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// Upper bound for any plausible size; larger values are treated as nonsense.
constexpr int64_t kMostBytes = int64_t{1} << 60;

/// What is wrong with /dev/shm for the largest of the needs.
struct ShmTrouble {
  bool missing = false;
  bool no_tmpfs = false;
  bool read_only = false;
  bool forbidden = false;
  bool small = false;
  bool few_inodes = false;
  int64_t bytes = 0;   ///< needed, with headroom
  int64_t inodes = 0;  ///< needed
  /// What the file system must hold, in whole pages: what is used now and what is needed.
  int64_t total_bytes = 0;
  int64_t total_inodes = 0;  ///< likewise
  bool mount_helps() const {
    return missing || no_tmpfs || read_only || forbidden || small || few_inodes;
  }
};

bool has_option(const std::string& options, const std::string& wanted) {
  std::istringstream text(options);
  for (std::string option; std::getline(text, option, ',');)
    if (option == wanted) return true;
  return false;
}

int64_t in_pages(const HostFacts& facts, int64_t bytes) {
  const int64_t page = std::max<int64_t>(facts.page_bytes, 1);
  return (bytes + page - 1) / page * page;
}

ShmTrouble shm_trouble(const HostFacts& facts, const std::vector<Shortage>& refused) {
  ShmTrouble trouble;
  for (const Shortage& shortage : refused) {
    if (shortage.need.dev_shm_bytes() == 0) continue;
    // No file system holds this much, and the sum of two such numbers may overflow, so that no size
    // of a mount helps.
    if (shortage.headroom_bytes > kMostBytes - shortage.need.dev_shm_bytes()) continue;
    trouble.bytes =
        std::max(trouble.bytes, shortage.need.dev_shm_bytes() + shortage.headroom_bytes);
    trouble.inodes = std::max(trouble.inodes, shortage.need.dev_shm_inodes());
  }
  if (trouble.bytes == 0) return trouble;
  const ShmDirFacts& dir = facts.dev_shm;
  trouble.total_bytes = in_pages(facts, trouble.bytes);
  trouble.total_inodes = trouble.inodes;
  if (!dir.exists) {
    trouble.missing = true;
    return trouble;
  }
  trouble.no_tmpfs = !dir.fs_type.empty() && dir.fs_type != "tmpfs";
  if (trouble.no_tmpfs) return trouble;
  trouble.read_only =
      dir.open_errno == EROFS || (dir.open_errno != 0 && has_option(dir.mount_options, "ro"));
  trouble.forbidden = !trouble.read_only && (dir.open_errno == EACCES || dir.open_errno == EPERM);
  if (dir.size_bytes > 0) {
    trouble.total_bytes = in_pages(facts, dir.size_bytes - dir.free_bytes + trouble.bytes);
    trouble.small = trouble.bytes > dir.free_bytes;
    if (!trouble.small && dir.probe_errno == ENOSPC && dir.probed_bytes <= trouble.bytes) {
      // statvfs reports enough room, but a real fallocate failed. How much is missing is not known,
      // so ask for the whole need on top of the present size.
      trouble.small = true;
      trouble.total_bytes = in_pages(facts, dir.size_bytes + trouble.bytes);
    }
  }
  if (dir.total_inodes > 0) {
    trouble.total_inodes = dir.total_inodes - dir.free_inodes + trouble.inodes;
    trouble.few_inodes = trouble.inodes > dir.free_inodes;
  }
  return trouble;
}

bool is_docker(const HostFacts& facts) {
  return facts.container == "docker" || facts.container == "podman" ||
         facts.container == "containerd";
}

/// The program that starts containers here. nerdctl has docker's flags.
std::string docker_command(const HostFacts& facts) {
  return cat(facts.container == "containerd" ? "nerdctl" : facts.container, " run");
}

std::string why(const ShmTrouble& trouble, const std::string& path) {
  if (trouble.missing) return cat(path, " is missing");
  if (trouble.no_tmpfs) return cat(path, " is no tmpfs");
  if (trouble.read_only) return cat(path, " is read-only");
  if (trouble.forbidden) return cat(path, " may not be written");
  if (trouble.small) return cat(path, " is too small");
  return cat(path, " has too few inodes");
}

Remedy docker_shm(const HostFacts& facts, const ShmTrouble& trouble) {
  const std::string size = cat(trouble.total_bytes, "b");
  Remedy remedy{"docker",
                cat(why(trouble, facts.dev_shm.path), ": start the container with ", size), ""};
  if (trouble.few_inodes) {
    // --shm-size does not set the number of inodes, but a separate tmpfs has an option for it.
    remedy.text = cat(docker_command(facts), " --tmpfs ", facts.dev_shm.path,
                      ":rw,nosuid,nodev,noexec,mode=1777,size=", trouble.total_bytes,
                      ",nr_inodes=", trouble.total_inodes, " ...");
    return remedy;
  }
  // --ipc=none leaves /dev/shm out, and a volume on it hides it.
  const bool hidden = trouble.missing || trouble.no_tmpfs || trouble.read_only || trouble.forbidden;
  remedy.text = cat(docker_command(facts), hidden ? " --ipc=private" : "", " --shm-size=", size,
                    " ...\n", "# in compose.yaml, under the service:\n",
                    hidden ? "ipc: private\n" : "", "shm_size: \"", size, "\"");
  if (hidden) remedy.text += cat("\n# and without a volume on ", facts.dev_shm.path);
  return remedy;
}

Remedy kubernetes_shm(const HostFacts& facts, const ShmTrouble& trouble) {
  const std::string text =
      cat("spec:\n"
          "  containers:\n"
          "    - name: shoal\n"
          "      volumeMounts:\n"
          "        - name: dshm\n"
          "          mountPath: ",
          facts.dev_shm.path,
          "\n"
          "  volumes:\n"
          "    - name: dshm\n"
          "      emptyDir:\n"
          "        medium: Memory\n"
          "        sizeLimit: \"",
          trouble.total_bytes, "\"  # bytes; its pages count against resources.limits.memory");
  return {"kubernetes",
          cat(why(trouble, facts.dev_shm.path), ": mount an emptyDir of ", trouble.total_bytes,
              " bytes there"),
          text};
}

/// "mount -o remount", which keeps the options that the mount has. mount(8) passes all of them back
/// to the kernel. In a user namespace the kernel refuses the uid= that it has listed itself,
/// because that is an id of the outside, so that there only the flags are repeated.
std::string remount_command(const std::string& mount_options) {
  bool owned = false;
  std::string flags;
  std::istringstream text(mount_options);
  for (std::string option; std::getline(text, option, ',');) {
    owned = owned || option.starts_with("uid=") || option.starts_with("gid=");
    if (option == "nosuid" || option == "nodev" || option == "noexec") flags += cat(",", option);
  }
  return owned ? cat("mount --options-mode ignore -o remount", flags) : "mount -o remount";
}

void add_mount(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list) {
  const std::string& path = facts.dev_shm.path;
  const std::string title = cat(why(trouble, path), ": ");
  if (trouble.missing || trouble.no_tmpfs) {
    list.push_back({"mount", cat(title, "mount a tmpfs of ", trouble.total_bytes, " bytes there"),
                    cat("mkdir -p ", path, " && mount -t tmpfs -o size=", trouble.total_bytes,
                        ",mode=1777 tmpfs ", path)});
    return;
  }
  std::string options;
  if (trouble.read_only) options += ",rw";
  if (trouble.small) options += cat(",size=", trouble.total_bytes);
  if (trouble.few_inodes) options += cat(",nr_inodes=", trouble.total_inodes);
  if (!options.empty()) {
    list.push_back({"mount",
                    cat(trouble.forbidden ? cat(path, " is too small: ") : title, "remount it"),
                    cat(remount_command(facts.dev_shm.mount_options), options, " ", path)});
  }
  if (trouble.forbidden)
    list.push_back({"mount", cat(title, "open it to all users"), cat("chmod 1777 ", path)});
}

void add_dev_shm(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list) {
  if (trouble.mount_helps()) {
    if (facts.container == "kubernetes") {
      list.push_back(kubernetes_shm(facts, trouble));
    } else if (is_docker(facts)) {
      list.push_back(docker_shm(facts, trouble));
      // Kubernetes runs on containerd, and the facts do not always show it.
      if (facts.container == "containerd") list.push_back(kubernetes_shm(facts, trouble));
    }
    // This works in a container too, if it was given the right to mount. The mount lasts as long as
    // the container.
    if (facts.container.empty() || facts.can_mount) add_mount(facts, trouble, list);
  }
}

/// Suggests raising RLIMIT_FSIZE, which also limits memfds.
void add_file_limit(const HostFacts& facts, const std::vector<Shortage>& refused,
                    std::vector<Remedy>& list) {
  int64_t largest = 0;
  for (const Shortage& shortage : refused)
    largest = std::max(largest, shortage.need.largest_file_bytes());
  if (facts.limits.fsize_bytes < 0 || largest <= facts.limits.fsize_bytes) return;
  const std::string title = cat("a file may have ", facts.limits.fsize_bytes, " bytes and needs ",
                                largest, ": lift the limit");
  if (is_docker(facts))
    list.push_back({"docker", title, cat(docker_command(facts), " --ulimit fsize=-1:-1 ...")});
  list.push_back({"ulimit", title, "ulimit -f unlimited"});
}

void add_open_files(const HostFacts& facts, const std::vector<Shortage>& refused,
                    std::vector<Remedy>& list) {
  int64_t most = 0;
  for (const Shortage& shortage : refused) most = std::max(most, shortage.need.descriptors);
  if (facts.limits.nofile < 0 || most <= facts.limits.nofile) return;
  // Round up to a multiple of this, so that there is room for a server's clients, whose connections
  // are not counted.
  constexpr int64_t kUsual = 1024;
  const int64_t limit = (most + kUsual - 1) / kUsual * kUsual;
  const std::string title = cat("a process may have ", facts.limits.nofile,
                                " open files and needs ", most, ": raise the limit");
  if (is_docker(facts)) {
    list.push_back({"docker", title,
                    cat(docker_command(facts), " --ulimit nofile=", limit, ":", limit, " ...")});
  }
  list.push_back({"ulimit", title, cat("ulimit -n ", limit)});
}

/// Suggests removing the files that killed runs left, if room is missing. If removing them is
/// enough, it comes first in the list, otherwise last.
void add_stale(const HostFacts& facts, const ShmTrouble& trouble, std::vector<Remedy>& list) {
  int64_t files = 0;
  int64_t bytes = 0;
  for (const LeftFile& file : facts.left_files) {
    if (file.state != LeftFileState::kStale) continue;
    ++files;
    bytes += file.bytes;
  }
  if (files == 0 || (!trouble.small && !trouble.few_inodes)) return;
  const ShmDirFacts& dir = facts.dev_shm;
  const bool enough = (!trouble.small || dir.free_bytes + bytes >= trouble.bytes) &&
                      (!trouble.few_inodes || dir.free_inodes + files >= trouble.inodes) &&
                      !trouble.read_only && !trouble.forbidden;
  const Remedy remedy{"other",
                      cat("killed runs left ", bytes, " bytes in ", dir.path, " (files: ", files,
                          "): remove them", enough ? ", which is enough" : ""),
                      "shoal doctor --clean-stale"};
  list.insert(enough ? list.begin() : list.end(), remedy);
}

std::string cgroup_file(const CgroupFacts& cgroup, std::string path, const char* file) {
  if (path == "/") path.clear();
  if (!path.starts_with("/sys/"))
    path = cat(cgroup.version == 1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", path);
  return cat(path, "/", file);
}

/// Raises memory.max, or memory.high of version 2. Only the first is a setting of container
/// runtimes.
Remedy raise_limit(const HostFacts& facts, const CgroupLevel& level, int64_t limit, bool own) {
  const bool high = level.least_limit() != level.limit_bytes;
  const std::string title =
      cat("the memory limit", high ? " (memory.high)" : "", " of ", level.least_limit(),
          " bytes is ", limit - level.least_limit(), " too low: raise it to ", limit);
  if (high) {
    std::string text =
        cat("echo ", limit, " > ", cgroup_file(facts.cgroup, level.path, "memory.high"));
    if (level.limit_bytes >= 0 && level.limit_bytes < limit)
      text = cat("echo ", limit, " > ", cgroup_file(facts.cgroup, level.path, "memory.max"), " && ",
                 text);
    return {"cgroup", title, text};
  }
  if (own && facts.container == "kubernetes") {
    return {"kubernetes", title,
            cat("spec:\n"
                "  containers:\n"
                "    - name: shoal\n"
                "      resources:\n"
                "        limits:\n"
                "          memory: \"",
                limit, "\"  # bytes")};
  }
  if (own && is_docker(facts))
    return {"docker", title, cat(docker_command(facts), " --memory=", limit, "b ...")};
  return {"cgroup", title,
          cat("echo ", limit, " > ",
              cgroup_file(facts.cgroup, level.path,
                          facts.cgroup.version == 1 ? "memory.limit_in_bytes" : "memory.max"))};
}

/// Suggests raising every limit that is too low. The nearest one is the container's own. Those
/// above it are set on the host.
void add_cgroup(const HostFacts& facts, const std::vector<Shortage>& refused,
                std::vector<Remedy>& list) {
  int64_t need = 0;
  for (const Shortage& shortage : refused)
    need = std::max(need, shortage.need.memory_bytes() + shortage.reserved_bytes);
  bool own = true;
  for (const CgroupLevel& level : facts.cgroup.levels) {
    if (level.least_limit() < 0) continue;
    const int64_t left =
        std::max<int64_t>(level.least_limit() - level.usage_bytes + level.reclaimable_bytes, 0);
    if (need > left) {
      const int64_t limit = in_pages(facts, level.usage_bytes - level.reclaimable_bytes + need);
      list.push_back(raise_limit(facts, level, limit, own));
    }
    own = false;
  }
}

bool refused_rung(const std::vector<Shortage>& refused, const std::string& name) {
  return std::any_of(refused.begin(), refused.end(),
                     [&name](const Shortage& shortage) { return shortage.need.rung == name; });
}

void add_ptrace_capability(const HostFacts& facts, std::vector<Remedy>& list) {
  const std::string title = "ranks may not read each other's memory: give the container SYS_PTRACE";
  if (facts.container == "kubernetes") {
    list.push_back({"kubernetes", title,
                    "spec:\n"
                    "  containers:\n"
                    "    - name: shoal\n"
                    "      securityContext:\n"
                    "        capabilities:\n"
                    "          add: [\"SYS_PTRACE\"]"});
  } else if (is_docker(facts)) {
    list.push_back({"docker", title, cat(docker_command(facts), " --cap-add=SYS_PTRACE ...")});
  } else {
    list.push_back({"other",
                    "a seccomp filter refuses process_vm_readv: allow it, as in a systemd unit",
                    "SystemCallFilter=process_vm_readv"});
  }
}

Remedy lower_yama(int scope, bool contained) {
  const std::string title =
      cat("yama's ptrace_scope ", scope, " keeps ranks from reading each other's memory");
  if (scope >= 3) {
    return {"sysctl", cat(title, ", until the host is started again with a lower one"),
            "echo kernel.yama.ptrace_scope=1 > /etc/sysctl.d/99-shoal.conf"};
  }
  // From 2 it is lowered to 1 first, which is enough if ranks may name each other as tracers. If it
  // is 1 already, that was evidently not enough.
  return {"sysctl", cat(title, contained ? ": lower it, on the host" : ": lower it"),
          cat("sysctl -w kernel.yama.ptrace_scope=", scope - 1)};
}

void add_cma(const HostFacts& facts, const std::vector<Shortage>& refused,
             std::vector<Remedy>& list) {
  const CmaFacts& cma = facts.cma;
  if (!refused_rung(refused, "cma") || !cma.tried) return;
  if (cma.error != EPERM && cma.error != EACCES && cma.error != ENOSYS) return;
  const bool yama = cma.yama_scope >= 1 && cma.error != ENOSYS;
  const bool contained = is_docker(facts) || facts.container == "kubernetes";
  // The capability opens docker's seccomp filter, and is what yama's scopes 1 and 2 ask for.
  if (contained && cma.yama_scope < 3 && (cma.seccomp == 2 || yama))
    add_ptrace_capability(facts, list);
  if (yama) list.push_back(lower_yama(cma.yama_scope, contained));
  if (!contained && cma.seccomp == 2) add_ptrace_capability(facts, list);
}

void add_others(const HostFacts& facts, const std::vector<Shortage>& refused,
                std::vector<Remedy>& list) {
  if (refused_rung(refused, "memfd") &&
      (facts.memfd_error == EPERM || facts.memfd_error == ENOSYS) && is_docker(facts)) {
    list.push_back(
        {"docker",
         "the container's seccomp filter refuses memfd_create: use docker's present one, or none",
         cat(docker_command(facts), " --security-opt seccomp=unconfined ...")});
  }
  if (refused_rung(refused, "tcp") && facts.loopback_error == ENETUNREACH)
    list.push_back({"other", "the loopback interface is down: bring it up", "ip link set lo up"});
}

}  // namespace

std::vector<Remedy> remedies(const HostFacts& facts, const std::vector<Shortage>& refused) {
  std::vector<Remedy> list;
  const ShmTrouble trouble = shm_trouble(facts, refused);
  // The cgroup comes first, because under too low a limit a larger /dev/shm only replaces the
  // refusal by SIGKILL.
  add_cgroup(facts, refused, list);
  add_dev_shm(facts, trouble, list);
  add_file_limit(facts, refused, list);
  add_open_files(facts, refused, list);
  add_cma(facts, refused, list);
  add_others(facts, refused, list);
  add_stale(facts, trouble, list);
  return list;
}

}  // namespace shoal
