#include "server/commands/bench_text.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(BenchTextTest, FiguresHaveFourDigits) {
  EXPECT_EQ(four_digits(5098.66), "5099");
  EXPECT_EQ(four_digits(0.19613), "0.1961");
  EXPECT_EQ(four_digits(25.3149), "25.31");
  EXPECT_EQ(four_digits(123456), "123456");
}

TEST(BenchTextTest, ASpreadAboveTwoIsNoisy) {
  EXPECT_EQ(spread_text({1000}, "tokens/s", "turns"), "");
  EXPECT_EQ(spread_text({1500.24, 1000, 2000}, "tokens/s", "turns"),
            "1000 to 2000 tokens/s in 3 turns");
  EXPECT_EQ(spread_text({2001, 1000}, "tokens/s", "turns"),
            "1000 to 2001 tokens/s in 2 turns; noisy: turns differ by more than a factor of 2");
}

TEST(BenchTextTest, ALoadNearTheNumberOfCpusIsBusy) {
  const std::string again = ": busy, so run it again when the machine is idle";
  EXPECT_EQ((MachineLoad{1.99, 2}.text()), "load average before the start: 1.99 on 2 CPUs" + again);
  EXPECT_EQ((MachineLoad{1.5, 2}.text()), "load average before the start: 1.50 on 2 CPUs");
  EXPECT_EQ((MachineLoad{1.01, 1}.text()), "load average before the start: 1.01 on 1 CPU" + again);
  EXPECT_GT(MachineLoad::now().cpus, 0);
}

}  // namespace
}  // namespace shoal
