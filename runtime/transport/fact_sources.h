#pragma once
#include <cstdint>
#include <string>

#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// The parts of gather_host_facts, one per subject. None fails: what cannot be read stays at its
/// default.

/// Where /proc, /sys and /dev are. Tests point it at recorded trees; what is tried rather than read
/// (statvfs, sockets, memfd, limits) is always this process's own.
struct SystemPaths {
  std::string root;  ///< before every path; "": the running system
};

/// All but the probe.
ShmDirFacts shm_dir_facts(const SystemPaths& paths, const std::string& directory);

/// Really allocates the bytes in facts->dev_shm and releases them, where arithmetic has nothing
/// against it. Near a memory limit a disposable child does it: beyond the limit a page of tmpfs is
/// SIGKILL and no errno. Needs every other fact.
void probe_shm_dir(int64_t bytes, HostFacts* facts);

CgroupFacts cgroup_facts(const SystemPaths& paths);

/// Counts all of the page cache as reclaimable. A model that has been loaded before is in it, and
/// the second reading has made its pages active: the kernel gives these up too before it kills, and
/// the same model needs no more room than it had.
void count_page_cache_in_full(const SystemPaths& paths, CgroupFacts* facts);

LimitFacts limit_facts();
int memfd_error();

/// attempt: forks two children, for a millisecond or two; at most 200.
CmaFacts cma_facts(const SystemPaths& paths, bool attempt);

GpuFacts gpu_facts(const SystemPaths& paths);
int numa_nodes(const SystemPaths& paths);

/// kubernetes_service: $KUBERNETES_SERVICE_HOST is set.
std::string container_kind(const SystemPaths& paths, bool kubernetes_service);

/// CAP_SYS_ADMIN in the effective set.
bool can_mount(const SystemPaths& paths);

/// Whether a socket can be bound to 127.0.0.1, or to ::1.
bool can_bind_loopback(int family);
std::vector<std::string> interface_names();

}  // namespace shoal
