#include "runtime/base/cpu_budget.h"

#include <cstdint>
#include <gtest/gtest.h>

namespace shoal {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

/// How many looks it took until the budget was spent.
int64_t looks_until_spent(CpuBudget& budget) {
  int64_t looks = 1;
  while (!budget.spent()) ++looks;
  return looks;
}

TEST(CpuBudget, AThreadThatComputesSpendsIt) {
  CpuBudget budget(kMillisecond);
  EXPECT_GT(looks_until_spent(budget), 1) << "nothing is spent at the first look";
  EXPECT_TRUE(budget.spent());
}

TEST(CpuBudget, ItBeginsWithTheFirstLook) {
  CpuBudget later(kMillisecond / 2), now(5 * kMillisecond);
  looks_until_spent(now);
  EXPECT_FALSE(later.spent());
}

TEST(CpuBudget, AGreaterOneLastsLonger) {
  CpuBudget little(kMillisecond), much(20 * kMillisecond);
  EXPECT_FALSE(little.spent());
  EXPECT_FALSE(much.spent());
  looks_until_spent(much);
  EXPECT_TRUE(little.spent());
}

}  // namespace
}  // namespace shoal
