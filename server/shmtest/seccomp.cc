#include "server/shmtest/seccomp.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <span>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shoal::shmtest {
namespace {

/// One ABI's numbers of the calls that a filter knows. The numbers are part of the kernel's ABI, so
/// they never change.
struct Abi {
  uint32_t arch;  ///< AUDIT_ARCH_*
  uint32_t process_vm_readv, process_vm_writev, memfd_create, ptrace;
};

#if defined(__x86_64__)
// The x32 ABI has the same AUDIT_ARCH value as x86-64 but sets this bit in its numbers, and it has
// numbers of its own for calls that take an iovec.
constexpr uint32_t kX32Bit = 0x40000000;
constexpr Abi kAbis[] = {
    {AUDIT_ARCH_X86_64, 310, 311, 319, 101},
    {AUDIT_ARCH_X86_64, kX32Bit + 539, kX32Bit + 540, kX32Bit + 319, kX32Bit + 521},
    {AUDIT_ARCH_I386, 347, 348, 356, 26}};
#elif defined(__aarch64__)
constexpr Abi kAbis[] = {{AUDIT_ARCH_AARCH64, 270, 271, 279, 117},
                         {AUDIT_ARCH_ARM, 376, 377, 385, 26}};
#else
constexpr std::span<const Abi> kAbis;
#endif

std::vector<uint32_t> numbers(const Abi& abi, const std::vector<DeniedCall>& denied) {
  std::vector<uint32_t> calls;
  for (const DeniedCall call : denied) {
    if (call == DeniedCall::kMemfdCreate) {
      calls.push_back(abi.memfd_create);
    } else {
      calls.insert(calls.end(), {abi.process_vm_readv, abi.process_vm_writev});
    }
  }
  return calls;
}

sock_filter load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}

/// If the value is equal, continues with the next instruction; otherwise skips `skip` instructions.
sock_filter unless_equal_skip(uint32_t value, size_t skip) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, static_cast<uint8_t>(skip));
}

/// A program that takes this action on the calls that calls_of(abi) names, and allows all others.
template <typename CallsOf>
std::vector<sock_filter> filter_of(uint32_t action, const CallsOf& calls_of) {
  std::vector<sock_filter> program;
  for (const Abi& abi : kAbis) {
    // A number has a meaning only within its ABI, so check the ABI first. Otherwise i386 calls
    // would be mistaken for others.
    const std::vector<uint32_t> calls = calls_of(abi);
    program.push_back(load(offsetof(seccomp_data, arch)));
    program.push_back(unless_equal_skip(abi.arch, 1 + 2 * calls.size()));
    program.push_back(load(offsetof(seccomp_data, nr)));
    for (const uint32_t call : calls) {
      program.push_back(unless_equal_skip(call, 1));
      program.push_back(BPF_STMT(BPF_RET | BPF_K, action));
    }
  }
  if (!program.empty()) program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return program;
}

Status unknown_processor() {
  return Status::error(Code::kFailedPrecondition,
                       "no seccomp filter for this processor: only x86-64 and aarch64");
}

}  // namespace

std::vector<sock_filter> deny_filter(const std::vector<DeniedCall>& denied) {
  return filter_of(SECCOMP_RET_ERRNO | EPERM, [&](const Abi& abi) { return numbers(abi, denied); });
}

Status deny_calls(const std::vector<DeniedCall>& denied) {
  std::vector<sock_filter> program = deny_filter(denied);
  if (program.empty()) return unknown_processor();
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) return {};
  // Without CAP_SYS_ADMIN the kernel demands this promise first. It has the effect that setuid
  // programs gain no privileges.
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0) {
    return {};
  }
  return Status::error(Code::kFailedPrecondition, "install a seccomp filter", errno);
}

Result<Fd> announce_ptrace() {
  std::vector<sock_filter> program = filter_of(
      SECCOMP_RET_USER_NOTIF, [](const Abi& abi) { return std::vector<uint32_t>{abi.ptrace}; });
  if (program.empty()) return unknown_processor();
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  // Linux 5.7 and newer know TSYNC_ESRCH, which changes nothing here. Older kernels refuse it, and
  // those before 5.5 could not let a call that has waited go on. Without SPEC_ALLOW, kernels before
  // 5.16 slow down every program that has a filter.
  const unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC_ESRCH |
                         SECCOMP_FILTER_FLAG_SPEC_ALLOW;
  // Unlike deny_calls(), this makes no promise of PR_SET_NO_NEW_PRIVS, because watching a program
  // must not change what it may do.
  Fd listener(static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter)));
  if (!listener.valid())
    return Status::error(Code::kFailedPrecondition, "watch for calls of ptrace", errno);
  return listener;
}

}  // namespace shoal::shmtest
