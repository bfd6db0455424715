#include "server/commands/collectives_bench.h"

#include <gtest/gtest.h>
#include <string>

#include "runtime/base/cat.h"
#include "runtime/comm/single_communicator.h"
#include "tests/conformance/rank_group.h"

namespace shoal {
namespace {

constexpr size_t kSizes[] = {8192, 65536, 1048576};

TEST(CollectivesBenchTest, EveryRankGetsATimingPerSize) {
  for (const std::string name : {"shm", "tcp"}) {
    const auto ends = run_ranks({name, RankKind::kProcesses, 2}, [](Communicator& communicator) {
      const auto timings = time_collectives(communicator, kSizes, 50);
      if (!timings.ok()) return timings.status().to_string();
      std::string text;
      for (const CollectiveTiming& timing : *timings) {
        const bool plausible = timing.median_us > 0 && timing.p99_us >= timing.median_us;
        text +=
            cat(timing.transport, " ", timing.world_size, " ", timing.bytes, plausible ? " " : "?");
      }
      return text;
    });
    for (const RankEnd& end : ends) {
      EXPECT_EQ(end.report, name + " 2 8192 " + name + " 2 65536 " + name + " 2 1048576 ");
    }
  }
}

TEST(CollectivesBenchTest, SizesMustBeWholeFloats) {
  const std::unique_ptr<Communicator> alone = make_single_communicator();
  const size_t odd[] = {6};
  EXPECT_EQ(time_collectives(*alone, odd, 10).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(time_collectives(*alone, kTimedBytes, 0).status().code(), Code::kInvalidArgument);
  const size_t none[] = {0};
  EXPECT_TRUE(time_collectives(*alone, none, 10).ok());
}

TEST(CollectivesBenchTest, TheReportSaysTheLoadAndWhatBareIs) {
  const CollectiveRow shm{"shm", 64, {0.75, 0.5, 1}, 2};
  const std::string head =
      "collectives: load average before the start: 8.50 on 2 CPUs: busy, so run it again when the "
      "machine is idle\n";
  const std::string row =
      "all_reduce shm       2 ranks       64 B  median     0.75 us  best round     0.50 us  its p99"
      "     2.00 us\n";
  EXPECT_EQ(collectives_report({shm}, {8.5, 2}, 2, false), head + row);
  const CollectiveRow bare{"bare", 64, {0.25}, 1};
  const std::string text = collectives_report({shm, bare}, {8.5, 2}, 2, false);
  EXPECT_EQ(text.rfind(head + row, 0), 0U) << text;
  EXPECT_NE(text.find("\nbare: no transport but a yardstick: a loop over shared"),
            std::string::npos)
      << text;
  EXPECT_EQ(
      collectives_report({shm}, {8.5, 2}, 2, true),
      "{\"bench\":\"collectives\",\"load_average\":8.50,\"all_reduce\":[{\"transport\":\"shm\","
      "\"tp\":2,\"bytes\":64,\"median_us\":0.750,\"best_us\":0.500,\"p99_us\":2.000}]}\n");
}

}  // namespace
}  // namespace shoal
