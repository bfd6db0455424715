#include "runtime/transport/facts/machine_facts.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/transport/facts/mount_table.h"

namespace shoal {
namespace {

int64_t soft_limit(int resource) {
  struct rlimit limit;
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return -1;
  return limit.rlim_cur >= rlim_t{1} << 60 ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

/// True for "535.104.05", but not for "x86_64" or "2024".
bool is_version(std::string_view text) {
  return text.find('.') != std::string_view::npos &&
         std::isdigit(static_cast<unsigned char>(text.front())) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return c == '.' || std::isdigit(static_cast<unsigned char>(c));
         });
}

/// A container runtime mounts files into its containers from folders that bear its name. Only the
/// root of a mount shows that (or the super options of an overlay on /), because on the machine
/// itself the same folders are mount points.
bool has_mount_from(const std::vector<Mount>& mounts, std::string_view folder) {
  return std::any_of(mounts.begin(), mounts.end(), [folder](const Mount& mount) {
    return mount.root.find(folder) != std::string::npos ||
           (mount.point == "/" && mount.super_options.find(folder) != std::string::npos);
  });
}

}  // namespace

LimitFacts limit_facts() {
  const int64_t nproc = ::getuid() == 0 ? -1 : soft_limit(RLIMIT_NPROC);
  return {soft_limit(RLIMIT_MEMLOCK), soft_limit(RLIMIT_FSIZE), soft_limit(RLIMIT_NOFILE), nproc,
          soft_limit(RLIMIT_AS)};
}

GpuFacts gpu_facts(const SystemPaths& paths) {
  GpuFacts facts;
  facts.count = count_numbered(paths.root + "/dev", "nvidia");
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
  const std::string text = text_of(paths.root + "/proc/driver/nvidia/version");
  for (const std::string_view part :
       parts_of(std::string_view(text).substr(0, text.find('\n')), ' ')) {
    if (facts.driver_version.empty() && !part.empty() && is_version(part))
      facts.driver_version = std::string(part);
  }
  return facts;
}

bool can_mount(const SystemPaths& paths) {
  constexpr int kSysAdmin = 21;  // linux/capability.h
  const std::string status = text_of(paths.root + "/proc/self/status");
  const size_t at = status.find("CapEff:");
  return at != std::string::npos &&
         (std::strtoull(status.c_str() + at + 7, nullptr, 16) >> kSysAdmin & 1) != 0;
}

int numa_nodes(const SystemPaths& paths) {
  return std::max(1, count_numbered(paths.root + "/sys/devices/system/node", "node"));
}

std::string container_kind(const SystemPaths& paths, bool kubernetes_service) {
  const std::vector<Mount> mounts = parse_mountinfo(text_of(paths.root + "/proc/self/mountinfo"));
  const std::string groups = text_of(paths.root + "/proc/self/cgroup");
  const auto in_group = [&groups](const char* name) {
    return groups.find(name) != std::string::npos;
  };
  // Kubernetes comes first, because its containers are also containerd's or docker's.
  if (kubernetes_service || in_group("kubepods") || has_mount_from(mounts, "/kubelet/pods/"))
    return "kubernetes";
  if (path_exists(paths.root + "/run/.containerenv") || in_group("libpod")) return "podman";
  // The names include the character that follows, because docker.service and containerd.service are
  // groups of the machine itself.
  if (path_exists(paths.root + "/.dockerenv") || in_group("/docker/") || in_group("/docker-") ||
      has_mount_from(mounts, "/docker/containers/")) {
    return "docker";
  }
  if (in_group("cri-containerd") || in_group("nerdctl") || has_mount_from(mounts, "io.containerd"))
    return "containerd";
  return "";
}

int loopback_error(int family) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(sockaddr_in);
  address.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr = in6addr_loopback;
    bytes = sizeof(sockaddr_in6);
  }
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  const Fd listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || ::bind(listener.get(), where, bytes) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), where, &bytes) != 0) {
    return errno;
  }
  // A firewall may drop the packets, so this does not wait. A connection over a loopback interface
  // that is up is made at once, and one that is still under way shows no error.
  const Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno;
  if (::connect(socket.get(), where, bytes) == 0 || errno == EINPROGRESS) return 0;
  return errno;
}

int64_t local_ports(const SystemPaths& paths) {
  const std::string text = text_of(paths.root + "/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0, last = 0;
  if (std::sscanf(text.c_str(), "%d %d", &first, &last) != 2 || last < first) return -1;
  return last - first + 1;
}

std::vector<std::string> interface_names() {
  std::vector<std::string> names;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return names;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) names.emplace_back(at->ifa_name);
  ::freeifaddrs(list);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace shoal
