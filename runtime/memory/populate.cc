#include "runtime/memory/populate.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <sys/mman.h>

#include "runtime/base/page_size.h"
#include "runtime/base/quantity.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc 2.36 of Debian 12 has it, older headers do not
#endif

namespace shoal {

Status populate(std::byte* data, size_t bytes) {
  if (bytes == 0) return {};
  int error;
  do {
    error = ::madvise(data, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == 0) return {};
  if (error != ENOMEM && error != EFAULT && error != EHWPOISON) {
    // The kernel does not know this advice (EINVAL before Linux 5.14), or a filter does not know or
    // like it (EPERM, ENOSYS). Neither says anything about the memory, so fault the pages in one at
    // a time. The 0 is hidden from the compiler, because clang leaves out an atomic "or" with a
    // constant 0, even a volatile one (LLVM issue 63692).
    const volatile uint8_t nothing = 0;
    for (size_t at = 0; at < bytes; at += page_size()) {
      std::atomic_ref<uint8_t>(reinterpret_cast<uint8_t&>(data[at]))
          .fetch_or(nothing, std::memory_order_relaxed);
    }
    return {};
  }
  return Status::error(Code::kResourceExhausted,
                       cat("touch ", bytes_text(static_cast<int64_t>(bytes)), " of memory"), error);
}

}  // namespace shoal
