#include "runtime/transport/shm_size.h"

#include <algorithm>

#include "runtime/transport/remedy_place.h"

namespace shoal {

ShmSize shm_size_for(const HostFacts& facts, std::span<const ShmNeed> needs,
                     int64_t headroom_bytes) {
  ShmSize size;
  for (const ShmNeed& need : needs) {
    size.bytes = std::max(size.bytes, need.dev_shm_bytes());
    size.bound = std::max(size.bound, need.bound);
  }
  if (size.bytes == 0) return size;
  if (headroom_bytes > kMostShmBytes - size.bytes) return {};
  size.bytes = in_pages(facts, size.bytes + headroom_bytes);
  return size;
}

std::string to_text(const ShmSize& size, const std::string& ranks) {
  if (size.bytes == 0) return "";
  const bool at_least = size.bound == Bound::kAtLeast;
  return cat(
      "a fresh /dev/shm for ", ranks, " in which ", at_least ? "the least of " : "",
      "any transport fits, with what is left for others:\n  docker: ", shm_size_flag(size.bytes),
      "  # ", words_before_round(at_least), round_size(size.bytes),
      "\n  kubernetes: ", size_limit_line(size.bytes, at_least), "\n");
}

Json to_json(const ShmSize& size) {
  if (size.bytes == 0) return nullptr;
  return {
      {"bytes", size.bytes},
      {"bound", name(size.bound)},
      {"docker", shm_size_flag(size.bytes)},
      {"kubernetes", cat("sizeLimit: \"", size.bytes, "\"")},
      {"round", {{"docker", round_size(size.bytes)}, {"kubernetes", round_quantity(size.bytes)}}}};
}

}  // namespace shoal
