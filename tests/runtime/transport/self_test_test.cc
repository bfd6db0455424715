// On every rung, the self-test must find nothing if nothing is wrong, and must be quick. What its
// rounds say is arithmetic.
#include "runtime/transport/self_test.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <vector>

#include "tests/breadth.h"
#include "tests/conformance/rank_group.h"

namespace shoal {
namespace {

class SelfTestTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(SelfTestTest, PassesAndMeasures) {
  const auto [transport, world_size] = GetParam();
  if (const std::string reason = why_not(transport); !reason.empty()) GTEST_SKIP() << reason;
  const auto ends =
      run_ranks({transport, RankKind::kProcesses, world_size}, [](Communicator& communicator) {
        const auto figures = self_test(communicator, 7);
        if (!figures.ok()) return figures.status().to_string();
        const bool plausible =
            figures->latency_us > 0 && figures->bytes_per_s > 0 && figures->seconds > 0;
        if (communicator.world().rank == 0) {
          std::printf("%s %d: %.1f us, %.0f MB/s, %.3f s\n", communicator.name(),
                      communicator.world().size, figures->latency_us, figures->bytes_per_s / 1e6,
                      figures->seconds);
          std::fflush(stdout);
        }
        return std::string(plausible ? "" : "no figures");
      });
  EXPECT_EQ(all_reports(ends), "");
}

INSTANTIATE_TEST_SUITE_P(All, SelfTestTest,
                         testing::Combine(testing::ValuesIn(kTransports),
                                          testing::ValuesIn(of_today<int>({1, 2, 3, 8, 16}))),
                         [](const auto& setting) {
                           return test_name(std::get<0>(setting.param)) +
                                  std::to_string(std::get<1>(setting.param));
                         });

TEST(BestRoundTest, IsTheShortestAndNoisyIfAnotherIsMoreThanTwiceAsLong) {
  const auto expect = [](const std::vector<double>& rounds_us, double us, bool noisy) {
    const BestRound best = best_round(rounds_us);
    EXPECT_EQ(best.us, us);
    EXPECT_EQ(best.noisy, noisy) << us;
  };
  expect({10}, 10, false);
  expect({10, 19}, 10, false);
  expect({10, 20}, 10, false);
  expect({10, 21}, 10, true);
  expect({30, 10, 12}, 10, true);
}

}  // namespace
}  // namespace shoal
