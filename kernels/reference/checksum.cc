#define XXH_INLINE_ALL
#include <cstddef>
#include <cstdint>
#include <xxhash.h>

namespace shoal::reference {

uint64_t checksum(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace shoal::reference
