// Leaves out one barrier of the kernels after the other. The emulated device must have an order of
// its lanes in which the kernel's result shows that, or it must report what came of it.
#include <string>
#include <vector>

#include "tests/emulator/barrier_problems.h"
#include "tests/emulator/on_device.h"

namespace shoal::emulator {
namespace {

/// The first of the orders, and the time of copies, at which the result is another one, or "".
std::string noticed(const BarrierProblem& problem, const std::vector<std::string>& in_orders,
                    const std::string& right) {
  for (const std::string& order : in_orders) {
    for (const char* copies : {"early", "late"}) {
      set("ORDER", order);
      set("COPIES", copies);
      if (problem.run() != right) return order + ", " + copies;
    }
  }
  return "";
}

/// A few orders. The last one has priorities.
#ifdef SHOAL_TSAN  // which is slow
const std::vector<std::string> kSomeOrders = {"3"};
#else
const std::vector<std::string> kSomeOrders = {"forward", "reverse", "1", "3"};
#endif

TEST(BarrierTest, AKernelThatLacksABarrierComputesSomethingElse) {
#ifdef SHOAL_TSAN
  GTEST_SKIP() << "ThreadSanitizer would report the race";
#endif
  for (const BarrierProblem& problem : barrier_problems()) {
    ASSERT_FALSE(problem.barriers.empty()) << problem.name;
    for (const std::string& place : problem.barriers) {
      with_settings({}, [&] {
        const std::string right = problem.run();
        set("SKIP_BARRIER", place);
        EXPECT_NE(noticed(problem, orders(), right), "") << problem.name << " without " << place;
      });
    }
  }
}

TEST(BarrierTest, AKernelWithItsBarriersIsTheSameInEveryOrder) {
  for (const BarrierProblem& problem : barrier_problems()) {
    with_settings({}, [&] {
      const std::string right = problem.run();
      EXPECT_EQ(noticed(problem, kSomeOrders, right), "") << problem.name;
    });
  }
}

}  // namespace
}  // namespace shoal::emulator
