#pragma once
#include <string>
#include <vector>

#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

LimitFacts limit_facts();
GpuFacts gpu_facts(const SystemPaths& paths);
int numa_nodes(const SystemPaths& paths);

/// kubernetes_service: $KUBERNETES_SERVICE_HOST is set.
std::string container_kind(const SystemPaths& paths, bool kubernetes_service);

/// Whether CAP_SYS_ADMIN is in the effective set.
bool can_mount(const SystemPaths& paths);

/// Why no connection can be made over 127.0.0.1 (AF_INET) or ::1 (AF_INET6), as an errno; 0: one
/// was made. To bind a socket shows nothing, because that works while the interface is down.
int loopback_error(int family);
/// How many ports are in ip_local_port_range; -1: not known.
int64_t local_ports(const SystemPaths& paths);
std::vector<std::string> interface_names();

}  // namespace shoal
