#include "server/host/host_resources.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sched.h>
#include <sstream>
#include <sys/resource.h>

#include "runtime/transport/rungs/gpu_checks.h"

namespace shoal {
namespace {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

/// The first number of the file; nullopt for "max", "-1" and everything else that is not a limit.
std::optional<double> number_in(const std::string& path) {
  const std::optional<std::string> line = first_line(path);
  double number = 0;
  if (!line || !(std::istringstream(*line) >> number) || number < 0) return std::nullopt;
  return number;
}

/// The number after a key such as "MemAvailable:" or "inactive_file"; 0 if the file has no such
/// key.
uint64_t number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    if (text >> word >> number && word == key) return number;
  }
  return 0;
}

/// The directories of a cgroup and of its parents, because limits apply at every level. Inside a
/// container the path in /proc/self/cgroup may not exist; the root of the mount is then the
/// container's own group.
std::vector<std::string> cgroup_levels(const std::string& mount, std::string path) {
  std::vector<std::string> levels;
  while (!path.empty() && path != "/") {
    levels.push_back(mount + path);
    path.resize(path.rfind('/'));
  }
  levels.push_back(mount);
  return levels;
}

void limit_memory(HostResources* host, const std::string& limit_file, const std::string& usage_file,
                  const std::string& stat_file, const std::string& reclaimable) {
  const std::optional<double> limit = number_in(limit_file), usage = number_in(usage_file);
  if (!limit || !usage) return;
  // Cached file pages count as used, but the kernel reclaims them when memory is needed.
  const double kept =
      std::max(0.0, *usage - static_cast<double>(number_after(stat_file, reclaimable)));
  const double available = std::max(0.0, *limit - kept);
  if (available < static_cast<double>(host->memory_bytes))
    host->memory_bytes = static_cast<uint64_t>(available);
}

void limit_cpus(HostResources* host, double quota, double period) {
  if (quota <= 0 || period <= 0) return;
  const double cpus = quota / period;
  if (host->cpu_quota == 0 || cpus < host->cpu_quota) host->cpu_quota = cpus;
}

void apply_cgroup_v2(HostResources* host, const std::string& mount, const std::string& path) {
  for (const std::string& level : cgroup_levels(mount, path)) {
    for (const char* limit : {"/memory.max", "/memory.high"}) {  // above high all is throttled
      limit_memory(host, level + limit, level + "/memory.current", level + "/memory.stat",
                   "inactive_file");
    }
    double quota = 0, period = 0;
    if (const auto line = first_line(level + "/cpu.max");
        line && std::istringstream(*line) >> quota >> period) {
      limit_cpus(host, quota, period);  // "max 100000" reads as no number
    }
  }
}

void apply_cgroup_v1(HostResources* host, const std::string& mount, const std::string& controllers,
                     const std::string& path) {
  for (const std::string& level : cgroup_levels(mount + "/" + controllers, path)) {
    limit_memory(host, level + "/memory.limit_in_bytes", level + "/memory.usage_in_bytes",
                 level + "/memory.stat", "total_inactive_file");
    limit_cpus(host, number_in(level + "/cpu.cfs_quota_us").value_or(0),
               number_in(level + "/cpu.cfs_period_us").value_or(0));
  }
}

std::vector<int> affinity_mask() {
  std::vector<int> cpus;
  for (int room = 1024; room <= 1 << 16 && cpus.empty(); room *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(room));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(room));
    if (set != nullptr && ::sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < room; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

int HostResources::usable_cpus() const {
  const auto count = static_cast<int>(cpus.size());
  if (cpu_quota <= 0) return count;
  return std::max(1, std::min(count, static_cast<int>(std::ceil(std::min(cpu_quota, 1e6)))));
}

HostResources host_resources(const std::string& root) {
  HostResources host;
  host.cpus = affinity_mask();
  host.memory_bytes = number_after(root + "/proc/meminfo", "MemAvailable:") * 1024;
  if (host.memory_bytes == 0) host.memory_bytes = UINT64_MAX;  // unknown means no limit

  const std::string mount = root + "/sys/fs/cgroup";
  // Lines such as "4:memory:/path"; "0::/path" is version 2.
  std::ifstream memberships(root + "/proc/self/cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      apply_cgroup_v2(&host, mount, path);
      apply_cgroup_v2(&host, mount + "/unified", path);
    } else if (controllers.find("memory") != std::string::npos ||
               controllers.find("cpu") != std::string::npos) {
      apply_cgroup_v1(&host, mount, controllers, path);
    }
  }
  // A limit of this process, which its ranks inherit. It is meant for each of them, but to count it
  // for all is on the safe side.
  struct rlimit space;
  if (root.empty() && ::getrlimit(RLIMIT_AS, &space) == 0)
    host.memory_bytes = std::min<uint64_t>(host.memory_bytes, space.rlim_cur);
  return host;
}

HostResources host_resources(const GpuFacts& gpu) {
  HostResources host = host_resources();
  if (!gpu.asked || gpu.ranks_per_gpu < 1) return host;
  const size_t used =
      std::min(static_cast<size_t>(std::max(group_devices(gpu), 0)), gpu.devices.size());
  for (size_t i = 0; i < used; ++i) {
    const GpuDevice& device = gpu.devices[i];
    if (device.bytes <= 0) continue;  // not known
    const bool known = device.free_bytes >= 0 && device.free_bytes <= device.bytes;
    const int64_t taken = known ? device.bytes - device.free_bytes : 0;
    host.devices.push_back({static_cast<uint64_t>(device.bytes / gpu.ranks_per_gpu),
                            static_cast<uint64_t>(taken / gpu.ranks_per_gpu)});
  }
  if (!gpu.cublas_path.empty() && !gpu.devices.empty()) {
    std::vector<std::string> capabilities;
    for (size_t i = 0; i < used; ++i) capabilities.push_back(gpu.devices[i].compute_capability);
    host.library = product_library_for(capabilities, gpu.cublas_path, gpu.cublas_version);
  }
  return host;
}

}  // namespace shoal
