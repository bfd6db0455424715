// What the ladder refuses before any process is started.
#include <cerrno>
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include "tests/runtime/supervisor/ladder_settings.h"

namespace shoal {
namespace {

/// Ranks that are too large for the memory limit even without a transport.
void check_too_large(int ranks) {
  LadderOptions options = in_order({"shm", "tcp"});
  options.budget.reserved_bytes = int64_t{100} << 20;
  options.on_refused = [](const Refusal& refusal, const std::string&, bool) {
    ADD_FAILURE() << refusal.rung << " is not at fault";
  };
  HostFacts facts = good_facts();
  facts.cgroup.version = 2;
  facts.cgroup.levels = {{"/", int64_t{64} << 20, int64_t{60} << 20, 0}};
  Ladder ladder(options, facts, ranks);
  const auto group = ladder.start(transport_only(ranks), {});
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.failure().phase, Phase::kBudget);
  EXPECT_EQ(group.failure().fault, Fault::kOwn);
  EXPECT_EQ(group.failure().why.code(), Code::kResourceExhausted);
  EXPECT_TRUE(group.failure().why.message().starts_with("there is too little memory for the model"))
      << group.failure().why.to_string();
  EXPECT_EQ(ladder.report().verdict(), Verdict::kNone);
  EXPECT_EQ(ladder.report().refusals.size(), 0u);
  EXPECT_EQ(ladder.report().remedies.size(), 1u);
}

TEST(Ladder, OneRankIsNotStartedBeyondTheMemoryLimit) {
  struct sysinfo machine = {};
  if (::sysinfo(&machine) == 0 && machine.totalswap > 0) GTEST_SKIP() << "this machine has swap";
  check_too_large(1);
}

TEST(Ladder, RanksBeyondTheMemoryLimitAreNoFaultOfATransport) {
  check_too_large(2);
}

/// The error of a start in a /dev/shm that has room for nothing, where memfds are refused.
std::string said_of(const LadderOptions& options) {
  HostFacts facts = facts_with_free(4096);
  facts.memfd_error = EPERM;
  Ladder ladder(options, facts, 2);
  const auto group = ladder.start(transport_only(2), {});
  EXPECT_FALSE(group.ok());
  EXPECT_EQ(ladder.report().verdict(), Verdict::kNone);
  return group.status().to_string();
}

TEST(Ladder, AListThatFailsNamesWhatItLeavesOut) {
  LadderOptions options = in_order({"shm"});
  const auto says = [&options](const std::string& words) {
    const std::string said = said_of(options);
    EXPECT_NE(said.find(words + "; "), std::string::npos) << said;
    EXPECT_NE(said.find("transport shm was refused\n"), std::string::npos) << said;
  };
  says("no transport works for 2 ranks (tried shm)");
  options.order_by = "--transport shm";
  says("none of --transport shm works for 2 ranks (tried shm)");
  options.left_out = {"memfd", "tcp", "cma"};
  says("none of --transport shm works for 2 ranks (tried shm); without it, tcp may work");
  options.left_out = {"memfd"};
  says("none of --transport shm works for 2 ranks (tried shm)");
}

TEST(Ladder, NamesWhatMayWorkWithoutThePolicy) {
  LadderOptions options = in_order({"shm", "memfd", "tcp"});
  options.min_transport = "shm";
  for (const auto& [error, name] : {std::pair(0, "memfd"), std::pair(EPERM, "tcp")}) {
    HostFacts facts = facts_with_free(4096);
    facts.memfd_error = error;
    Ladder ladder(options, facts, 2);
    EXPECT_FALSE(ladder.start(transport_only(2), {}).ok());
    EXPECT_EQ(ladder.report().verdict(), Verdict::kForbidden);
    EXPECT_EQ(ladder.report().may_work, name);
  }
}

TEST(Ladder, NamesEverySettingThatWouldHaveToBeLeftOut) {
  LadderOptions options = in_order({"shm", "memfd"});
  options.min_transport = "shm";
  options.degrade_on_shm_shortage = false;
  Ladder ladder(options, facts_with_free(4096), 2);
  EXPECT_FALSE(ladder.start(transport_only(2), {}).ok());
  EXPECT_EQ(ladder.report().forbidden_by,
            cat(options.names.shm_shortage, " and ", options.names.min_transport, " shm"));
}

TEST(Ladder, APolicyForbidsNothingIfNoTransportIsLeft) {
  LadderOptions options = in_order({"shm"});
  options.min_transport = "shm";
  EXPECT_NE(said_of(options).find("no transport works for 2 ranks"), std::string::npos);
  options.min_transport.clear();
  options.degrade_on_shm_shortage = false;
  EXPECT_NE(said_of(options).find("no transport works for 2 ranks"), std::string::npos);
}

}  // namespace
}  // namespace shoal
