#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// Upper bound for any plausible size. Larger values are treated as nonsense, and sums of two that
/// are not do not overflow.
inline constexpr int64_t kMostShmBytes = int64_t{1} << 60;

/// The bytes, rounded up to whole pages of this machine.
inline int64_t in_pages(const HostFacts& facts, int64_t bytes) {
  const int64_t page = std::max<int64_t>(facts.page_bytes, 1);
  return (bytes + page - 1) / page * page;
}

inline bool is_docker(const HostFacts& facts) {
  return facts.container == "docker" || facts.container == "podman" ||
         facts.container == "containerd";
}

/// "2 ranks", or "3 communicators of 2 ranks": what a size is for.
inline std::string group_text(int world_size, int communicators) {
  return cat(communicators == 1 ? "" : cat(communicators, " communicators of "),
             counted(world_size, "rank"));
}

/// The program that starts containers here. nerdctl has docker's flags.
inline std::string docker_command(const HostFacts& facts) {
  return cat(facts.container == "containerd" ? "nerdctl" : facts.container, " run");
}

/// "1314816 B (1.3 MiB), or 2m": what is exactly enough, and what people like to write.
inline std::string exact_or_round(int64_t bytes) {
  return cat(bytes_text(bytes), ", or ", round_size(bytes));
}

/// The same as Kubernetes writes quantities, where "2m" would be two thousandths of a byte:
/// "1314816 B (1.3 MiB), or 2Mi".
inline std::string exact_or_quantity(int64_t bytes) {
  return cat(bytes_text(bytes), ", or ", round_quantity(bytes));
}

/// docker's flag for a /dev/shm of exactly this many bytes.
inline std::string shm_size_flag(int64_t bytes) {
  return cat("--shm-size=", bytes, "b");
}

/// What a comment behind a size says before the next round size.
inline const char* words_before_round(bool at_least) {
  return at_least ? "at least, or " : "or ";
}

/// The line of a Kubernetes emptyDir that holds exactly this many bytes, with the next round size
/// and what else they need.
inline std::string size_limit_line(int64_t bytes, bool at_least) {
  return cat("sizeLimit: \"", bytes, "\"  # bytes, ", words_before_round(at_least),
             round_quantity(bytes), "; its pages count against resources.limits.memory");
}

}  // namespace shoal
