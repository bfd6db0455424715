#include "runtime/base/process_memory.h"

#include <cinttypes>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/fd.h"

namespace shoal {

std::optional<ProcessMemory> read_process_memory() {
  const Fd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  char text[256] = {};
  if (!file.valid() || ::read(file.get(), text, sizeof text - 1) <= 0) return std::nullopt;
  int64_t pages = 0, resident = 0, shared = 0;
  if (std::sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64, &pages, &resident, &shared) != 3)
    return std::nullopt;
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  return ProcessMemory{pages * page_bytes, resident * page_bytes, shared * page_bytes};
}

}  // namespace shoal
