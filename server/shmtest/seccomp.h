#pragma once
#include <vector>

#include "runtime/base/status.h"

struct sock_filter;

namespace shoal::shmtest {

enum class DeniedCall { kProcessVm, kMemfdCreate };

/// The BPF program that answers these system calls with EPERM and lets all others pass, in the
/// native ABI and in the 32-bit one that this kernel may also run. Empty on a processor that it
/// does not know.
std::vector<sock_filter> deny_filter(const std::vector<DeniedCall>& denied);

/// Installs it in the calling thread; what it executes keeps it. FAILED_PRECONDITION: the kernel
/// refuses, or the processor is unknown.
Status deny_calls(const std::vector<DeniedCall>& denied);

}  // namespace shoal::shmtest
