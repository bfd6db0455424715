#include "runtime/transport/shm_size.h"

#include <algorithm>

#include "runtime/transport/remedy_place.h"

namespace shoal {
namespace {

/// " (with the 256 KiB of --shm-headroom)"; empty: nothing is left for others.
std::string headroom_text(int64_t bytes) {
  if (bytes == 0) return "";
  return cat(" (with the ", bytes % 1024 == 0 ? cat(bytes / 1024, " KiB") : cat(bytes, " B"),
             " of --shm-headroom)");
}

}  // namespace

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
  size.headroom_bytes = headroom_bytes;
  return size;
}

std::string to_text(const ShmSize& size, const std::string& ranks) {
  if (size.bytes == 0) return "";
  const bool at_least = size.bound == Bound::kAtLeast;
  return cat(at_least ? "least " : "",
             "size of a new, empty /dev/shm that suffices for every transport of ", ranks,
             headroom_text(size.headroom_bytes), ":\n  docker: ", shm_size_flag(size.bytes), "  # ",
             words_before_round(at_least), round_size(size.bytes),
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
