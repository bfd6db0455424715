#include "server/shmtest/forbidden.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace shoal::shmtest {
namespace {

constexpr int64_t kEnough = 65536;

/// Raises the limit that was reached, and those behind it that are 0. Others stay as they are, and
/// none becomes lower. Empty if none of them can be raised here.
std::string raise_limits(NamespaceKind reached) {
  std::string settings;
  for (const NamespaceKind kind :
       {NamespaceKind::kUser, NamespaceKind::kMount, NamespaceKind::kProcess}) {
    const std::optional<int64_t> most = namespace_limit(kind);
    if (kind < reached || !most || (*most != 0 && kind != reached)) continue;
    settings += cat(" ", limit_name(kind), "=", std::max(kEnough, 2 * *most));
  }
  return settings.empty() ? "" : cat("\n  raise the limit: sysctl -w", settings);
}

constexpr const char* kBeRoot = "\n  run it as root";
constexpr const char* kAllowUserNamespaces =
    "\n  on Debian: sysctl -w kernel.unprivileged_userns_clone=1"
    "\n  on Ubuntu: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
constexpr const char* kInDocker =
    "\n  in Docker (it weakens the container's isolation: for tests alone): add --cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined";

/// Root needs no user namespace, but the others all the same, of which there may be no more then.
std::string remedies_of(std::optional<NamespaceKind> reached) {
  if (!reached) return cat("; one of these allows them:", kBeRoot, kAllowUserNamespaces, kInDocker);
  const std::string raise = raise_limits(*reached);
  if (reached == NamespaceKind::kUser)
    return cat(":", raise, raise.empty() ? "" : "\notherwise:", kBeRoot, kInDocker);
  return raise.empty() ? "; a container around this one has to allow more" : cat(":", raise);
}

}  // namespace

std::string limit_name(NamespaceKind kind) {
  constexpr const char* kShort[] = {"user", "mnt", "pid", "net"};
  return cat("user.max_", kShort[static_cast<size_t>(kind)], "_namespaces");
}

std::optional<int64_t> namespace_limit(NamespaceKind kind) {
  std::string path = cat("/proc/sys/", limit_name(kind));
  path[path.find('.')] = '/';
  std::ifstream file(path);
  int64_t most = 0;
  return file >> most && most <= INT_MAX / 2 ? std::optional(most) : std::nullopt;
}

Status why_forbidden(const Outcome& outcome) {
  return Status::error(
      Code::kUnavailable,
      cat("cannot ", outcome.detail,
          "; shmtest needs mount and process namespaces (--matrix host alone does not)",
          remedies_of(outcome.reached)));
}

}  // namespace shoal::shmtest
