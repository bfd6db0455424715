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

}  // namespace
}  // namespace shoal
