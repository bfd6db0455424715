#include "server/shmtest/seccomp.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <span>
#include <sys/prctl.h>

namespace shoal::shmtest {
namespace {

/// One ABI's numbers of the calls that can be denied. The numbers are part of the kernel's ABI, so
/// they never change.
struct Abi {
  uint32_t arch;  ///< AUDIT_ARCH_*
  uint32_t process_vm_readv, process_vm_writev, memfd_create;
};

#if defined(__x86_64__)
// The x32 ABI has the same AUDIT_ARCH value as x86-64 but sets this bit in its numbers, and it has
// numbers of its own for calls that take an iovec.
constexpr uint32_t kX32Bit = 0x40000000;
constexpr Abi kAbis[] = {{AUDIT_ARCH_X86_64, 310, 311, 319},
                         {AUDIT_ARCH_X86_64, kX32Bit + 539, kX32Bit + 540, kX32Bit + 319},
                         {AUDIT_ARCH_I386, 347, 348, 356}};
#elif defined(__aarch64__)
constexpr Abi kAbis[] = {{AUDIT_ARCH_AARCH64, 270, 271, 279}, {AUDIT_ARCH_ARM, 376, 377, 385}};
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

}  // namespace

std::vector<sock_filter> deny_filter(const std::vector<DeniedCall>& denied) {
  std::vector<sock_filter> program;
  for (const Abi& abi : kAbis) {
    // A number has a meaning only within its ABI, so check the ABI first. Otherwise i386 calls
    // would be mistaken for others.
    const std::vector<uint32_t> calls = numbers(abi, denied);
    program.push_back(load(offsetof(seccomp_data, arch)));
    program.push_back(unless_equal_skip(abi.arch, 1 + 2 * calls.size()));
    program.push_back(load(offsetof(seccomp_data, nr)));
    for (const uint32_t call : calls) {
      program.push_back(unless_equal_skip(call, 1));
      program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
    }
  }
  if (!program.empty()) program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return program;
}

Status deny_calls(const std::vector<DeniedCall>& denied) {
  std::vector<sock_filter> program = deny_filter(denied);
  if (program.empty()) {
    return Status::error(Code::kFailedPrecondition,
                         "no seccomp filter for this processor: only x86-64 and aarch64");
  }
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

}  // namespace shoal::shmtest
