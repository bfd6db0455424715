#include "runtime/transport/needs/process_budget.h"

#include "runtime/base/quantity.h"

namespace shoal {
namespace {

Status too_many(int64_t added, int64_t used, const std::string& limit, const std::string& remedy) {
  return Status::error(Code::kResourceExhausted,
                       cat("the start needs ", added, " processes and threads beside the ", used,
                           " that there are; ", limit, ": ", remedy));
}

}  // namespace

Status check_processes(const ProcessNeed& need, const HostFacts& facts) {
  const int64_t added = need.processes_and_threads;
  // Other processes of this user count too, but to count them takes too long.
  const int64_t own = facts.pids.own_threads, nproc = facts.limits.nproc;
  if (nproc >= 0 && own + added > nproc) {
    return too_many(added, own, cat("this user may have ", nproc, " (ulimit -u)"),
                    cat("raise it with ulimit -u ", own + added, " or more"));
  }
  const PidsFacts& pids = facts.pids;
  if (pids.limit >= 0 && pids.used + added > pids.limit) {
    return too_many(added, pids.used, cat("the container may have ", pids.limit, " (pids.max)"),
                    cat("raise it with docker run --pids-limit ", pids.used + added, ", or echo ",
                        pids.used + added, " > ", pids.path, "/pids.max"));
  }
  const int64_t space = facts.limits.address_space_bytes;
  if (space >= 0 && need.address_space_bytes > space) {
    return Status::error(
        Code::kResourceExhausted,
        cat("a rank needs ", bytes_text(need.address_space_bytes),
            " of address space; a process may have ", bytes_text(space),
            " (ulimit -v): raise it with ulimit -v unlimited, or lower --kv-cache-memory"));
  }
  return {};
}

}  // namespace shoal
