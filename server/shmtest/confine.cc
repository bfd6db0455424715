#include "server/shmtest/confine.h"

#include <algorithm>
#include <cerrno>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/shmtest/os_failure.h"
#include "server/shmtest/seccomp.h"

namespace shoal::shmtest {
namespace {

Status limit(int resource, const char* name, uint64_t value) {
  rlimit now{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0)
    return failed(cat("read ", name));
  const rlimit wanted = {std::min<rlim_t>(value, now.rlim_max),
                         std::min<rlim_t>(value, now.rlim_max)};
  if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &wanted) != 0)
    return failed(cat("set ", name));
  return {};
}

/// Drops capabilities so that the program to be executed will not have them, even if it runs as
/// root.
Status drop_capabilities(std::initializer_list<int> capabilities) {
  for (const int capability : capabilities) {
    if (::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 0) continue;
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
      return failed(cat("drop capability ", capability));
  }
  // Also clear the inheritable set, because those would come back through exec in spite of the
  // bounding set.
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return failed("read capabilities");
  data[0].inheritable = data[1].inheritable = 0;
  if (::syscall(SYS_capset, &header, data) != 0) return failed("set capabilities");
  return {};
}

}  // namespace

Status confine(const Condition& condition) {
  // A SIGBUS is an expected result, so leave no core file in the user's directory.
  SHOAL_RETURN_IF_ERROR(limit(RLIMIT_CORE, "RLIMIT_CORE", 0));
  if (condition.rlimit_fsize_bytes > 0) {
    SHOAL_RETURN_IF_ERROR(limit(RLIMIT_FSIZE, "RLIMIT_FSIZE", condition.rlimit_fsize_bytes));
  }
  if (condition.rlimit_nofile > 0)
    SHOAL_RETURN_IF_ERROR(limit(RLIMIT_NOFILE, "RLIMIT_NOFILE", condition.rlimit_nofile));
  if (condition.rlimit_memlock_bytes > 0) {
    SHOAL_RETURN_IF_ERROR(limit(RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", condition.rlimit_memlock_bytes));
    SHOAL_RETURN_IF_ERROR(drop_capabilities({CAP_IPC_LOCK}));
  }
  if (condition.other_user) {
    SHOAL_RETURN_IF_ERROR(drop_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER}));
  }
  std::vector<DeniedCall> denied;
  if (condition.no_cma) denied.push_back(DeniedCall::kProcessVm);
  if (condition.no_memfd) denied.push_back(DeniedCall::kMemfdCreate);
  return denied.empty() ? Status() : deny_calls(denied);
}

}  // namespace shoal::shmtest
