#include "runtime/transport/budget.h"

#include <climits>

namespace shoal {
namespace {

template <int64_t Consumer::*Amount>
int64_t sum(const std::vector<Consumer>& consumers) {
  int64_t total = 0;
  for (const Consumer& consumer : consumers) total += consumer.*Amount;
  return total;
}

}  // namespace

int64_t ShmNeed::dev_shm_bytes() const {
  return sum<&Consumer::bytes>(dev_shm);
}

int64_t ShmNeed::dev_shm_inodes() const {
  return sum<&Consumer::inodes>(dev_shm);
}

int64_t ShmNeed::memory_bytes() const {
  return dev_shm_bytes() + sum<&Consumer::bytes>(memory);
}

Status check_budget(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options) {
  const int64_t memory = facts.cgroup.available_bytes();
  if (memory >= 0 && need.memory_bytes() + options.reserved_bytes > memory) {
    return Status::error(Code::kResourceExhausted,
                         cat("needs ", need.memory_bytes(), " bytes of memory beside ", options.reserved_bytes,
                             " for weights and KV cache; the memory cgroup has ", memory, " left"));
  }
  const int64_t bytes = need.dev_shm_bytes();
  if (bytes == 0) return {};
  const ShmDirFacts& dir = facts.dev_shm;
  if (!dir.exists)
    return Status::error(Code::kNotFound, cat("needs ", bytes, " bytes in ", dir.path, ", which is missing"));
  if (dir.open_errno != 0) {
    return Status::error(Code::kPermissionDenied,
                         cat("needs ", bytes, " bytes in ", dir.path, ", where no file can be made"), dir.open_errno);
  }
  if (dir.size_bytes > 0 && bytes + options.headroom_bytes > dir.free_bytes) {
    return Status::error(Code::kResourceExhausted,
                         cat("needs ", bytes, " bytes in ", dir.path, " and ", options.headroom_bytes,
                             " left free for others; ", dir.free_bytes, " of ", dir.size_bytes, " are free"));
  }
  if (facts.limits.fsize_bytes >= 0 && bytes > facts.limits.fsize_bytes) {
    return Status::error(Code::kResourceExhausted, cat("needs a file of ", bytes, " bytes; the file size limit is ",
                                                       facts.limits.fsize_bytes, " (ulimit -f)"));
  }
  if (dir.total_inodes > 0 && need.dev_shm_inodes() > dir.free_inodes) {
    return Status::error(Code::kResourceExhausted, cat("needs ", need.dev_shm_inodes(), " inodes in ", dir.path, "; ",
                                                       dir.free_inodes, " are free"));
  }
  return {};
}

}  // namespace shoal
