#include "runtime/comm/spin.h"

#include <bit>
#include <gtest/gtest.h>
#include <sched.h>
#include <thread>
#include <vector>

namespace shoal {
namespace {

CpuMask cpus(uint64_t bits) {
  CpuMask mask{};
  mask[0] = bits;
  return mask;
}

TEST(SpinTest, RanksThatShareACpuHardlyPoll) {
  const std::vector<CpuMask> pinned{cpus(1), cpus(2)};
  const std::vector<CpuMask> floating{cpus(3), cpus(3)};
  const std::vector<CpuMask> together{cpus(1), cpus(1)};
  const std::vector<CpuMask> crowded{cpus(3), cpus(3), cpus(3)};
  EXPECT_EQ(spin_budget_ns(pinned), spin_budget_ns(floating));
  EXPECT_EQ(spin_budget_ns(together), spin_budget_ns(crowded));
  EXPECT_LT(spin_budget_ns(together), spin_budget_ns(pinned));
}

TEST(SpinTest, MaskIsOfTheCallingThread) {
  const CpuMask all = calling_thread_cpus();
  int first = 0;
  while (!(all[first / 64] >> (first % 64) & 1)) ++first;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    CpuMask expected{};
    expected[first / 64] = uint64_t{1} << (first % 64);
    EXPECT_EQ(calling_thread_cpus(), expected);
  }).join();
  EXPECT_EQ(calling_thread_cpus(), all);
}

}  // namespace
}  // namespace shoal
