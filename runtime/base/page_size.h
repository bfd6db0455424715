#pragma once
#include <cstddef>
#include <unistd.h>

namespace shoal {

/// Bytes of a page of memory: 4 KiB on x86; 4, 16 or 64 KiB on Arm, as its kernel was built.
inline size_t page_size() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Rounded up to a multiple of the page size.
inline size_t whole_pages(size_t bytes) {
  return (bytes + page_size() - 1) / page_size() * page_size();
}

}  // namespace shoal
