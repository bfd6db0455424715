#include "runtime/transport/remedy.h"

#include <algorithm>
#include <cerrno>

#include "runtime/base/counted.h"
#include "runtime/base/program_path.h"
#include "runtime/transport/remedy_dev_shm.h"
#include "runtime/transport/remedy_place.h"
#include "runtime/transport/rungs/gpu_checks.h"

namespace shoal {
namespace {

/// Suggests raising RLIMIT_FSIZE, which also limits memfds.
void add_file_limit(const HostFacts& facts, const std::string& ranks,
                    const std::vector<Shortage>& refused, std::vector<Remedy>& list) {
  int64_t largest = 0;
  for (const Shortage& shortage : refused)
    largest = std::max(largest, shortage.need.largest_file_bytes());
  if (facts.limits.fsize_bytes < 0 || largest <= facts.limits.fsize_bytes) return;
  const std::string title =
      cat("a file may have ", bytes_text(facts.limits.fsize_bytes), " and needs ",
          bytes_text(largest), " for ", ranks, ": lift the limit");
  if (is_docker(facts))
    list.push_back({"docker", title, cat(docker_command(facts), " --ulimit fsize=-1:-1 ...")});
  list.push_back({"ulimit", title, "ulimit -f unlimited"});
}

/// Rounds up to a multiple of 1024, so that there is room for a server's clients, whose connections
/// are not counted.
void raise_open_files(const HostFacts& facts, int64_t least, const std::string& title,
                      std::vector<Remedy>& list) {
  constexpr int64_t kUsual = 1024;
  const int64_t limit = (least + kUsual - 1) / kUsual * kUsual;
  if (is_docker(facts)) {
    list.push_back({"docker", title,
                    cat(docker_command(facts), " --ulimit nofile=", limit, ":", limit, " ...")});
  }
  list.push_back({"ulimit", title, cat("ulimit -n ", limit)});
}

void add_open_files(const HostFacts& facts, const std::string& ranks,
                    const std::vector<Shortage>& refused, std::vector<Remedy>& list) {
  int64_t most = 0;
  for (const Shortage& shortage : refused) most = std::max(most, shortage.need.descriptors);
  if (facts.limits.nofile < 0 || most <= facts.limits.nofile) return;
  raise_open_files(facts, most,
                   cat("a process may have ", counted(facts.limits.nofile, "open file"),
                       " and needs ", most, " for ", ranks, ": raise the limit"),
                   list);
}

std::string cgroup_file(const CgroupFacts& cgroup, std::string path, const char* file) {
  if (path == "/") path.clear();
  if (!path.starts_with("/sys/"))
    path = cat(cgroup.version == 1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", path);
  return cat(path, "/", file);
}

/// Raises memory.max, or memory.high of version 2. Only the first is a setting of container
/// runtimes.
Remedy raise_limit(const HostFacts& facts, const std::string& ranks, const CgroupLevel& level,
                   int64_t limit, bool own) {
  const bool high = level.least_limit() != level.limit_bytes;
  const bool in_pod = !high && own && facts.container == "kubernetes";
  const std::string title =
      cat("the memory limit", high ? " (memory.high)" : "", " of ", bytes_text(level.least_limit()),
          " is ", bytes_text(limit - level.least_limit()), " too low for ", ranks, ": raise it to ",
          in_pod ? exact_or_quantity(limit) : exact_or_round(limit));
  if (high) {
    std::string text =
        cat("echo ", limit, " > ", cgroup_file(facts.cgroup, level.path, "memory.high"));
    if (level.limit_bytes >= 0 && level.limit_bytes < limit)
      text = cat("echo ", limit, " > ", cgroup_file(facts.cgroup, level.path, "memory.max"), " && ",
                 text);
    return {"cgroup", title, text};
  }
  if (in_pod) {
    return {"kubernetes", title,
            cat("spec:\n"
                "  containers:\n"
                "    - name: shoal\n"
                "      resources:\n"
                "        limits:\n"
                "          memory: \"",
                limit, "\"  # bytes, or ", round_quantity(limit))};
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
void add_cgroup(const HostFacts& facts, const std::string& ranks,
                const std::vector<Shortage>& refused, std::vector<Remedy>& list) {
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
      list.push_back(raise_limit(facts, ranks, level, limit, own));
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
  if (!cma.dumpable) {
    list.push_back({"other",
                    "the kernel guards the memory of a program whose file its user may not read: "
                    "let it be read",
                    cat("chmod a+r ", program_name())});
    return;
  }
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
  // Each rank listens on a port, and others may use some.
  constexpr int64_t kFewPorts = 1024;
  if (refused_rung(refused, "tcp") && facts.local_ports >= 0 && facts.local_ports < kFewPorts) {
    list.push_back({"sysctl",
                    cat("the kernel gives out only ", counted(facts.local_ports, "port"),
                        " by itself (net.ipv4.ip_local_port_range): let it have more"),
                    "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\""});
  }
}

/// What the host needs before a container can have GPUs, if no driver is seen from here.
std::string host_first(const GpuFacts& gpu) {
  if (gpu.cuda_driver > 0) return "";
  const std::string_view oldest = oldest_driver(gpu.cuda_runtime);
  return cat(", once the host has ",
             oldest.empty() ? "NVIDIA's driver" : cat("driver ", oldest, " or newer"),
             " and NVIDIA's container toolkit");
}

/// Suggests giving GPUs to a container that sees neither one nor a driver.
void add_gpus(const HostFacts& facts, int world_size, std::vector<Remedy>& list) {
  const GpuFacts& gpu = facts.gpu;
  if (!gpu.asked || gpu.error_at != GpuErrorAt::kFacts || !gpu.driver_version.empty() ||
      !gpu.devices.empty())
    return;
  const int wanted = (world_size + gpu.ranks_per_gpu - 1) / gpu.ranks_per_gpu;
  const std::string title = cat("the container has no GPU, and ", counted(world_size, "rank"),
                                world_size == 1 ? " needs " : " need ", counted(wanted, "GPU"),
                                ": give it GPUs", host_first(gpu));
  if (facts.container == "kubernetes") {
    list.push_back({"kubernetes", title,
                    cat("spec:\n"
                        "  containers:\n"
                        "    - name: shoal\n"
                        "      resources:\n"
                        "        limits:\n"
                        "          nvidia.com/gpu: ",
                        wanted)});
  } else if (is_docker(facts)) {
    list.push_back(
        {"docker", title,
         cat(docker_command(facts), facts.container == "podman" ? " --device nvidia.com/gpu=all ..."
                                                                : " --gpus all ...")});
  }
}

}  // namespace

std::vector<Remedy> remedies(const HostFacts& facts, int world_size,
                             const std::vector<Shortage>& refused, const std::string& clean_stale,
                             int communicators) {
  std::vector<Remedy> list;
  const std::string ranks = group_text(world_size, communicators);
  const ShmTrouble trouble = shm_trouble(facts, ranks, refused);
  // The cgroup comes first, because under too low a limit a larger /dev/shm only replaces the
  // refusal by SIGKILL.
  add_cgroup(facts, ranks, refused, list);
  add_dev_shm(facts, trouble, list);
  add_file_limit(facts, ranks, refused, list);
  add_open_files(facts, ranks, refused, list);
  add_cma(facts, refused, list);
  add_others(facts, refused, list);
  add_stale(facts, trouble, clean_stale, list);
  return list;
}

std::vector<Remedy> remedies_of_failure(const HostFacts& facts, int world_size,
                                        const Status& failure) {
  std::vector<Remedy> list;
  if (failure.code() == Code::kFailedPrecondition) add_gpus(facts, world_size, list);
  const int64_t limit = facts.limits.nofile;
  const bool too_few = std::any_of(failure.causes().begin(), failure.causes().end(),
                                   [](const Cause& cause) { return cause.os_error == EMFILE; });
  if (!too_few || limit < 0) return list;
  raise_open_files(facts, limit + 1,
                   cat("a process may have ", counted(limit, "open file"),
                       ", which is too few for ", group_text(world_size, 1), ": raise the limit"),
                   list);
  return list;
}

}  // namespace shoal
