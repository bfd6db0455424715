#pragma once
#include <cstddef>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// Shared memory without a name. The front creates it and workers inherit the descriptor; the bytes
/// live until the last process that holds the descriptor or a mapping is gone, however it ends.
/// Move-only; data() may be used from any thread.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  /// `bytes` zeroed bytes in `directory` (a tmpfs), reserved there and touched. The descriptor is
  /// close-on-exec. RESOURCE_EXHAUSTED: the file system, its inodes, a file size limit or the
  /// process's descriptors do not suffice; says what was asked and what is free. NOT_FOUND: no such
  /// directory. PERMISSION_DENIED: read-only, or not ours to write. INVALID_ARGUMENT: zero bytes,
  /// or more than a file can have. Nothing is left behind on an error. (Where memory is short in
  /// the cgroup the kernel ends the process here, at start-up, rather than in the middle of an
  /// answer.)
  static Result<ShmSegment> create(size_t bytes, const std::string& directory = "/dev/shm");

  /// The same in a memfd: no mount bounds it, the memory cgroup alone does. Sealed once its bytes
  /// are there: no holder of the descriptor can shrink it (a later access would be SIGBUS), grow it
  /// or take the seals off. UNIMPLEMENTED: the kernel has no memfd. Else as create.
  static Result<ShmSegment> create_memfd(size_t bytes);

  /// Maps the first `bytes` of a segment that another process created. `fd` stays the caller's.
  /// INVALID_ARGUMENT: fd is not a file of at least that size. RESOURCE_EXHAUSTED: no address space
  /// or descriptor left.
  static Result<ShmSegment> open(int fd, size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// For passing to a child; owned by the segment.
  int fd() const { return fd_.get(); }

 private:
  ShmSegment(Fd fd, std::byte* data, size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  static Result<ShmSegment> map(Fd fd, size_t bytes);

  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace shoal
