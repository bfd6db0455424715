// What the ladder does for one rank, which needs no transport, before any process is started.
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include "tests/runtime/supervisor/ladder_settings.h"

namespace shoal {
namespace {

TEST(Ladder, OneRankIsNotStartedBeyondTheMemoryLimit) {
  struct sysinfo machine = {};
  if (::sysinfo(&machine) == 0 && machine.totalswap > 0) GTEST_SKIP() << "this machine has swap";
  LadderOptions options = in_order({"shm"});
  options.budget.reserved_bytes = int64_t{100} << 20;
  HostFacts facts = good_facts();
  facts.cgroup.version = 2;
  facts.cgroup.levels = {{"/", int64_t{64} << 20, int64_t{60} << 20, 0}};
  Ladder ladder(options, facts, 1);
  const auto group = ladder.start(transport_only(1), {});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.failure().phase, Phase::kBudget);
  EXPECT_EQ(group.failure().why.code(), Code::kResourceExhausted);
  EXPECT_EQ(ladder.report().verdict(), Verdict::kNone);
  EXPECT_EQ(ladder.report().remedies.size(), 1u);
}

}  // namespace
}  // namespace shoal
