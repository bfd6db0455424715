#include "runtime/base/process_limit.h"

#include <cerrno>
#include <cstddef>
#include <optional>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"

namespace shoal {

namespace {

/// What this process may use of the resource, in its unit. Empty: there is no such limit, or none
/// is known. It allocates nothing.
std::optional<rlim_t> limit_of(decltype(RLIMIT_AS) resource) {
  struct rlimit limit;
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

}  // namespace

bool stack_is_refused() {
  constexpr size_t kUsualBytes = size_t{8} << 20;
  const size_t bytes = limit_of(RLIMIT_STACK).value_or(kUsualBytes);
  void* const tried =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (tried == MAP_FAILED) return true;
  ::munmap(tried, bytes);
  return false;
}

bool clone3_is_denied() {
  // No process comes of it: without arguments the kernel answers EINVAL, and only a filter EPERM.
  return ::syscall(SYS_clone3, nullptr, 0) < 0 && errno == EPERM;
}

const char* process_denial() {
  return clone3_is_denied()
             ? "; a seccomp filter denies clone3, as that of Docker before 20.10.10 does: update "
               "Docker, or start the container with --security-opt seccomp=unconfined"
             : "; a seccomp filter or a security module denies it";
}

std::string process_limit() {
  if (stack_is_refused()) {
    const std::optional<rlim_t> bytes = limit_of(RLIMIT_AS);
    if (!bytes) return "; memory for its stack was refused";
    return cat("; memory for its stack was refused: a process may have ",
               bytes_text(static_cast<int64_t>(*bytes)), " of address space (ulimit -v)");
  }
  const std::optional<rlim_t> processes = limit_of(RLIMIT_NPROC);
  if (!processes) return "; the container's limit of processes (pids) is reached";
  return cat("; its user may have ", *processes,
             " processes and threads (ulimit -u), and a container may limit them too (pids)");
}

std::string address_space_limit() {
  const std::optional<rlim_t> bytes = limit_of(RLIMIT_AS);
  if (!bytes) return "";
  return cat("; a process may have ", bytes_text(static_cast<int64_t>(*bytes)), " (ulimit -v)");
}

Status reserve_address_space(int64_t bytes) {
  if (bytes <= 0) return {};
  const void* const taken = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken != MAP_FAILED) return {};
  const int error = errno;
  return Status::error(
      Code::kResourceExhausted,
      cat("reserve ", bytes_text(bytes), " of address space", address_space_limit()), error);
}

Code descriptor_code(int error) {
  const bool ran_out = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  return ran_out ? Code::kResourceExhausted : Code::kUnavailable;
}

std::string descriptor_hint(int error) {
  const std::optional<rlim_t> files = limit_of(RLIMIT_NOFILE);
  if (error == EMFILE && files)
    return cat("; a process may have only ", counted(*files, "open file"), " (ulimit -n)");
  if (error == ENFILE) return "; the machine has no more descriptors (fs.file-max)";
  if (error == EPERM || error == EACCES || error == ENOSYS)
    return "; the kernel, or a filter of system calls (seccomp), refuses it";
  return "";
}

}  // namespace shoal
