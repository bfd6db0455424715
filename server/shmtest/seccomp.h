#pragma once
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

struct sock_filter;

namespace shoal::shmtest {

enum class DeniedCall { kProcessVm, kMemfdCreate };

/// A BPF program that answers these system calls with EPERM and allows all others, in the native
/// ABI and in the 32-bit one that the kernel may also run. Empty if the processor is not known
/// here.
std::vector<sock_filter> deny_filter(const std::vector<DeniedCall>& denied);

/// Installs the filter in the calling thread. Programs that the thread executes inherit it. Error:
/// FAILED_PRECONDITION if the kernel refuses, or if the processor is unknown.
Status deny_calls(const std::vector<DeniedCall>& denied);

/// Makes every call of ptrace() by the calling thread, and by whatever it starts, wait for an
/// answer through the descriptor returned (seccomp_unotify(2)). Once nobody holds the descriptor,
/// those calls fail with ENOSYS. Error: FAILED_PRECONDITION if the kernel refuses (before
/// Linux 5.7, without CAP_SYS_ADMIN, or below another such filter), or if the processor is unknown.
Result<Fd> announce_ptrace();

}  // namespace shoal::shmtest
