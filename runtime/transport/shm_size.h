#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/json.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"

namespace shoal {

/// The size of a new, empty /dev/shm in which each of several needs fits, one at a time.
struct ShmSize {
  int64_t bytes = 0;            ///< whole pages, with what is left for others; 0: no size is of use
  Bound bound = Bound::kExact;  ///< of the needs' bounds the worst
  int64_t headroom_bytes = 0;   ///< what is left for others
};

ShmSize shm_size_for(const HostFacts& facts, std::span<const ShmNeed> needs,
                     int64_t headroom_bytes);

/// Lines for docker and Kubernetes, each exact to the page and with the next round size. Empty if
/// no size is of use. ranks: whose needs they are, "2 ranks".
std::string to_text(const ShmSize& size, const std::string& ranks);

/// {"bytes", "bound", "docker", "kubernetes", "round"}: docs/json.md. Null if no size is of use.
Json to_json(const ShmSize& size);

}  // namespace shoal
