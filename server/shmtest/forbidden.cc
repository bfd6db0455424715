#include "server/shmtest/forbidden.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string>

namespace shoal::shmtest {
namespace {

/// How many namespaces of each kind there may be, in the order in which they are made.
constexpr const char* kLimits[] = {"max_user_namespaces", "max_mnt_namespaces",
                                   "max_pid_namespaces"};
constexpr int64_t kEnough = 65536;

/// -1 if it cannot be read.
int64_t limit_here(const char* name) {
  std::ifstream file(cat("/proc/sys/user/", name));
  int64_t most = 0;
  return file >> most ? most : -1;
}

/// Raises the limit that was reached, and those behind it that are 0. Others stay as they are, and
/// none becomes lower. Empty if none of them can be raised here.
std::string raise_limits(const std::string& reached) {
  std::string settings;
  bool met = false;
  for (const char* name : kLimits) {
    const int64_t most = limit_here(name);
    const bool is_reached = reached == name;
    met = met || is_reached;
    // A new user namespace has no limit of its own, so that one around it was reached.
    if (!met || most > INT_MAX / 2 || (most != 0 && !is_reached)) continue;
    settings += cat(" user.", name, "=", std::max(kEnough, 2 * most));
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

}  // namespace

Status why_forbidden(const Outcome& outcome) {
  const std::string raise = raise_limits(outcome.reached);
  return Status::error(
      Code::kUnavailable,
      cat("cannot ", outcome.detail,
          "; shmtest needs mount and process namespaces (--matrix host alone does not)",
          outcome.reached.empty()
              ? cat("; one of these allows them:", kBeRoot, kAllowUserNamespaces)
              : cat(":", raise, raise.empty() ? "" : "\notherwise:", kBeRoot),
          kInDocker));
}

}  // namespace shoal::shmtest
