#include "runtime/transport/facts/host_facts.h"

#include <algorithm>
#include <cstdlib>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/transport/facts/cgroup_facts.h"
#include "runtime/transport/facts/cma_facts.h"
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/largest_files.h"
#include "runtime/transport/facts/machine_facts.h"
#include "runtime/transport/facts/shm_dir_facts.h"
#include "runtime/transport/facts/stale_segments.h"

namespace shoal {
namespace {

constexpr size_t kLargestFiles = 3;

int64_t kibibytes(const std::string& meminfo, const char* key) {
  return std::clamp<int64_t>(number_after(meminfo, key).value_or(0), 0, int64_t{1} << 50) * 1024;
}

void read_memory(const SystemPaths& paths, HostFacts* facts) {
  const std::string meminfo = text_of(paths.root + "/proc/meminfo");
  facts->memory_total_bytes = kibibytes(meminfo, "MemTotal:");
  facts->memory_available_bytes = kibibytes(meminfo, "MemAvailable:");
}

}  // namespace

HostFacts gather_host_facts(const FactsRequest& request) {
  const Clock::time_point start = Clock::now();
  const SystemPaths paths;
  HostFacts facts;
  if (struct utsname name; ::uname(&name) == 0) facts.kernel = name.release;
  facts.container = container_kind(paths, std::getenv("KUBERNETES_SERVICE_HOST") != nullptr);
  facts.can_mount = can_mount(paths);
  if (const long page = ::sysconf(_SC_PAGESIZE); page > 0) facts.page_bytes = page;
  read_memory(paths, &facts);
  facts.numa_nodes = numa_nodes(paths);
  facts.memfd_error = memfd_error();
  facts.cgroup = cgroup_facts(paths);
  facts.limits = limit_facts();
  facts.cma = cma_facts(paths, request.probe_cma);
  facts.pids = pids_facts(paths);
  facts.proc_mounted = path_exists(paths.root + "/proc/self/status");
  facts.loopback_error = loopback_error(AF_INET);
  facts.loopback_ipv4 = facts.loopback_error == 0;
  facts.loopback_ipv6 = loopback_error(AF_INET6) == 0;
  facts.local_ports = local_ports(paths);
  facts.interfaces = interface_names();
  facts.gpu = gpu_facts(paths);
  facts.left_files = find_left_files(request.shm_dir, request.is_nccl_size);
  facts.dev_shm = shm_dir_facts(paths, request.shm_dir);
  facts.dev_shm.largest_files = largest_files(request.shm_dir, kLargestFiles);
  if (request.probe_bytes > 0) probe_shm_dir(request.probe_bytes, &facts);
  facts.gather_ms = seconds_since(start) * 1e3;
  return facts;
}

void refresh_host_facts(HostFacts* facts) {
  const SystemPaths paths;
  read_memory(paths, facts);
  facts->cgroup = cgroup_facts(paths);
  count_page_cache_in_full(paths, &facts->cgroup);
  facts->pids = pids_facts(paths);
  facts->dev_shm = shm_dir_facts(paths, facts->dev_shm.path);
  facts->dev_shm.largest_files = largest_files(facts->dev_shm.path, kLargestFiles);
}

}  // namespace shoal
