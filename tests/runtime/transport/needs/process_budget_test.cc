#include "runtime/transport/needs/process_budget.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

std::string refusal(const ProcessNeed& need, const HostFacts& facts) {
  const Status status = check_processes(need, facts);
  EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted);
  return std::string(status.message());
}

TEST(ProcessBudget, ALimitThatIsNotKnownForbidsNothing) {
  EXPECT_EQ(refusal({1 << 20, int64_t{1} << 50}, {}), "");
}

TEST(ProcessBudget, ProcessesOfTheUser) {
  HostFacts facts;
  facts.limits.nproc = 10;
  facts.pids.own_threads = 3;
  EXPECT_EQ(refusal({7, 0}, facts), "");
  EXPECT_EQ(
      refusal({8, 0}, facts),
      "the start needs 8 processes and threads beside the 3 that there are; this user may have 10 "
      "(ulimit -u): raise it with ulimit -u 11 or more");
}

TEST(ProcessBudget, ProcessesOfTheContainer) {
  HostFacts facts;
  facts.pids = {"/sys/fs/cgroup", 20, 15, 1};
  EXPECT_EQ(refusal({5, 0}, facts), "");
  EXPECT_EQ(
      refusal({6, 0}, facts),
      "the start needs 6 processes and threads beside the 15 that there are; the container may have 20 "
      "(pids.max): raise it with docker run --pids-limit 21, or echo 21 > "
      "/sys/fs/cgroup/pids.max");
}

TEST(ProcessBudget, AddressSpace) {
  HostFacts facts;
  facts.limits.address_space_bytes = int64_t{1} << 30;
  EXPECT_EQ(refusal({1, int64_t{1} << 30}, facts), "");
  EXPECT_NE(refusal({1, int64_t{3} << 29}, facts)
                .find("needs 1610612736 B (1536.0 MiB) of address space; a process may have "
                      "1073741824 B (1024.0 MiB) (ulimit -v)"),
            std::string::npos);
}

}  // namespace
}  // namespace shoal
