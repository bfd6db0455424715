#pragma once
#include <cstddef>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// Shared memory without a name. The front creates it and workers inherit the descriptor. The bytes
/// live until the last process that holds the descriptor or a mapping has ended, however it ends.
/// They are left out of core files. Move-only; data() may be used from any thread.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  /// Creates `bytes` zeroed bytes in `directory` (a tmpfs), reserves them there and touches them.
  /// The descriptor is close-on-exec. RESOURCE_EXHAUSTED: the file system, its inodes, a file size
  /// limit or the process's limit of descriptors is too small; if the file system is full, the
  /// error says how much was asked for and how much is free. NOT_FOUND: there is no such directory.
  /// PERMISSION_DENIED: it is read-only, or this process may not write to it. INVALID_ARGUMENT:
  /// zero bytes, or more than a file can have. Nothing is left behind on an error. If the memory
  /// cgroup is at its limit, the kernel ends the process here, at start-up, rather than in the
  /// middle of an answer.
  static Result<ShmSegment> create(size_t bytes, const std::string& directory = "/dev/shm");

  /// The same in a memfd, which only the memory cgroup limits, because no mount does. Once its
  /// bytes are there it is sealed, so that no holder of the descriptor can shrink it (a later
  /// access would be SIGBUS), grow it or remove the seals. UNIMPLEMENTED: the kernel has no memfd.
  /// Other errors are those of create().
  static Result<ShmSegment> create_memfd(size_t bytes);

  /// Maps the first `bytes` of a segment that another process created. The segment duplicates `fd`,
  /// which stays with the caller. INVALID_ARGUMENT: fd is not a file of at least that size.
  /// RESOURCE_EXHAUSTED: no address space or descriptor is left.
  static Result<ShmSegment> open(int fd, size_t bytes);

  /// Fills the segment with zeros by write(2), so that a page whose memory is broken is an error
  /// here instead of SIGBUS. INTERNAL or RESOURCE_EXHAUSTED, with errno: the kernel refuses it.
  Status clear();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// To be passed to a child process. The segment owns it.
  int fd() const { return fd_.get(); }

 private:
  ShmSegment(Fd fd, std::byte* data, size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  static Result<ShmSegment> map(Fd fd, size_t bytes);

  Fd fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace shoal
