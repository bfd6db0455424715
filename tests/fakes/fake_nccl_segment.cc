// Part of a FAKE of libnccl (fake_nccl.cc): its files in /dev/shm.
#include "tests/fakes/fake_nccl_segment.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakes/fake_nccl_log.h"
#include "tests/fakes/fake_nccl_settings.h"

namespace fake_nccl {
namespace {

constexpr size_t kCountBytes = 4;
constexpr int kNewLog = 23007;  // logs files among the allocations of host memory

bool failed(const char* doing, const Segment& segment) {
  const int error = errno;
  warn("misc/shmutils.cc:131", "Error while %s shared memory segment %s (size %ld), error: %s (%d)",
       doing, segment.path.c_str(), static_cast<long>(segment.bytes), std::strerror(error), error);
  return false;
}

bool map(Segment* segment) {
  const size_t bytes = segment->bytes + kCountBytes;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
  if (memory == MAP_FAILED) {
    warn("misc/shmutils.cc:98", "Error: Could not map %s size %zu, error: %s (%d)",
         segment->path.c_str(), bytes, std::strerror(errno), errno);
    return false;
  }
  segment->memory = static_cast<char*>(memory);
  return true;
}

int* count_of(const Segment& segment) {
  // The count may be unaligned, because the user may set buffer sizes. x86-64 allows that, and with
  // every default size the count is aligned.
  return reinterpret_cast<int*>(segment.memory + segment.bytes);
}

}  // namespace

bool create_segment(size_t bytes, int attachers, Segment* segment) {
  char path[] = "/dev/shm/nccl-XXXXXX";
  segment->bytes = bytes;
  segment->fd = ::mkostemp(path, O_CLOEXEC);
  segment->path = path;
  if (segment->fd < 0) {
    const int error = errno;
    warn("misc/shmutils.cc:72", "Error: failed to create shared memory file %s, error %s (%d)",
         path, std::strerror(error), error);
    errno = error;
    return failed("creating", *segment);
  }
  if (::fallocate(segment->fd, 0, 0, static_cast<off_t>(bytes + kCountBytes)) != 0) {
    const int error = errno;
    warn("misc/shmutils.cc:87", "Error: failed to extend %s to %ld bytes, error: %s (%d)", path,
         static_cast<long>(bytes + kCountBytes), std::strerror(error), error);
    ::close(segment->fd);
    segment->fd = -1;
    errno = error;
    return failed("creating", *segment);
  }
  const auto file_bytes = static_cast<long>(bytes + kCountBytes);
  if (settings().version < kNewLog)
    info(Subsystem::kAlloc, "Allocated %ld bytes of shared memory in %s", file_bytes, path);
  else
    info(Subsystem::kAllocHost, "os/linux.cc:799 (%s) Allocated %ld bytes of shared memory in %s",
         "ncclOsShmOpen", file_bytes, path);
  if (!map(segment)) return failed("creating", *segment);
  std::memset(segment->memory, 0, bytes);
  __atomic_store_n(count_of(*segment), attachers, __ATOMIC_RELEASE);
  return true;
}

bool attach_segment(const std::string& path, size_t bytes, Segment* segment) {
  segment->path = path;
  segment->bytes = bytes;
  segment->fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (segment->fd < 0) {
    const int error = errno;
    warn("misc/shmutils.cc:93", "Call to open failed: %s", std::strerror(error));
    errno = error;
    return failed("attaching to", *segment);
  }
  if (!map(segment)) return failed("attaching to", *segment);
  if (__atomic_sub_fetch(count_of(*segment), 1, __ATOMIC_ACQ_REL) == 0) unlink_segment(segment);
  return true;
}

void unlink_segment(Segment* segment) {
  if (::unlink(segment->path.c_str()) == 0) return;
  info(Subsystem::kAlloc, "unlink shared memory %s failed, error: %s (%d)", segment->path.c_str(),
       std::strerror(errno), errno);
}

}  // namespace fake_nccl
