#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/base/cat.h"
#include "runtime/base/quantity.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// The bytes of whole pages that hold this many.
inline int64_t in_pages(const HostFacts& facts, int64_t bytes) {
  const int64_t page = std::max<int64_t>(facts.page_bytes, 1);
  return (bytes + page - 1) / page * page;
}

inline bool is_docker(const HostFacts& facts) {
  return facts.container == "docker" || facts.container == "podman" ||
         facts.container == "containerd";
}

/// The program that starts containers here. nerdctl has docker's flags.
inline std::string docker_command(const HostFacts& facts) {
  return cat(facts.container == "containerd" ? "nerdctl" : facts.container, " run");
}

/// "1314816 B (1.3 MiB), or 2m": what is exactly enough, and what people like to write.
inline std::string exact_or_round(int64_t bytes) {
  return cat(bytes_text(bytes), ", or ", round_size(bytes));
}

}  // namespace shoal
