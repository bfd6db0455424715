#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <sys/mman.h>
#include <utility>

#include "runtime/base/status.h"

namespace shoal {

/// Zeroed anonymous memory, aligned to 64 bytes. It is on huge pages if the kernel grants them,
/// which is worth 5-12 % of read bandwidth on two cores (docs/benchmarks.md). It is for weights,
/// caches and the like, and is left out of core files. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// At least `bytes` bytes; from 2 MiB on they are rounded up to whole huge pages. Zero bytes give
  /// an empty buffer. RESOURCE_EXHAUSTED, with the size: the kernel refuses.
  static Result<AlignedBuffer> allocate(size_t bytes) {
    AlignedBuffer buffer;
    if (bytes == 0) return buffer;
    constexpr size_t kHugePage = size_t{2} << 20;
    // Round up to whole huge pages. A size that would overflow stays as it is, so that mmap refuses
    // it.
    const bool huge = bytes >= kHugePage && bytes <= SIZE_MAX - kHugePage;
    const size_t rounded = huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
    void* data =
        ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      return Status::error(Code::kResourceExhausted, cat("allocate ", rounded, " B"), errno);
    (void)::madvise(data, rounded, MADV_DONTDUMP);  // gigabytes would delay the end of a crash
    if (huge) (void)::madvise(data, rounded, MADV_HUGEPAGE);  // only advice: a refusal costs speed
    buffer.data_ = data;
    buffer.bytes_ = rounded;
    return buffer;
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  template <typename T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace shoal
