#pragma once
#include <vector>

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

}  // namespace shoal::shmtest
