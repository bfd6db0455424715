#include "runtime/transport/host_facts.h"

#include <algorithm>

namespace shoal {

int64_t CgroupFacts::available_bytes() const {
  int64_t least = -1;
  for (const CgroupLevel& level : levels) {
    if (level.limit_bytes < 0) continue;
    const int64_t left = std::max<int64_t>(level.limit_bytes - level.usage_bytes + level.reclaimable_bytes, 0);
    least = least < 0 ? left : std::min(least, left);
  }
  return least;
}

}  // namespace shoal
