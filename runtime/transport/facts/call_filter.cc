#include "runtime/transport/facts/call_filter.h"

#include <csignal>
#include <cstddef>
#include <iterator>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/transport/facts/child_probe.h"

namespace shoal {
namespace {

constexpr int64_t kTryMs = 1'000;

struct Call {
  const char* name;
  long number;
};

constexpr Call kCalls[] = {
    {"memfd_create", SYS_memfd_create},
    {"fallocate", SYS_fallocate},
    {"statfs", SYS_statfs},
    {"madvise", SYS_madvise},
    {"pidfd_open", SYS_pidfd_open},
    {"signalfd4", SYS_signalfd4},
    {"socketpair", SYS_socketpair},
    {"accept4", SYS_accept4},
};

}  // namespace

Status check_call_filter() {
  void* const page =
      ::mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return {};
  auto* const at = static_cast<volatile size_t*>(page);
  const ChildAnswer answer = ask_child(
      [at] {
        for (size_t i = 0; i < std::size(kCalls); ++i) {
          *at = i;
          // With these arguments none of the calls does anything that lasts.
          (void)::syscall(kCalls[i].number, -1, 0, 0, 0, 0, 0);
        }
        return 0;
      },
      kTryMs);
  const char* const name = kCalls[*at].name;
  ::munmap(page, sizeof(size_t));
  if (answer.end != ChildAnswer::End::kKilled || answer.value != SIGSYS) return {};
  return Status::error(
      Code::kUnavailable,
      cat("a filter of system calls (seccomp) kills whoever calls ", name,
          ", as this program must: allow it, or let the filter answer with an errno (in a systemd "
          "unit SystemCallErrorNumber=EPERM)"));
}

}  // namespace shoal
