// Which fault a rank is given, at which start and where.
#include "runtime/rank/test_fault.h"

#include <cstdlib>
#include <gtest/gtest.h>

namespace shoal {
namespace {

TestFault fault_of(const char* asked, int32_t rank, int32_t start_number) {
  ::setenv("SHOAL_TEST_FAULT", asked, 1);
  RankStart start;
  start.rank = rank;
  start.start_number = start_number;
  TestFault fault;
  fault.set(start);
  ::unsetenv("SHOAL_TEST_FAULT");
  return fault;
}

TEST(TestFaultTest, IsOfOneRankAndOnePhase) {
  const TestFault fault = fault_of("1:load:fail", 1, 0);
  EXPECT_EQ(fault.enter("load").code(), Code::kInternal);
  EXPECT_TRUE(fault.enter("touch").ok());
  EXPECT_TRUE(fault_of("1:load:fail", 0, 0).enter("load").ok());
  EXPECT_TRUE(fault_of("1:load:fail", 1, 1).enter("load").ok()) << "of the first start only";
}

TEST(TestFaultTest, MayComeInAStepOrInTheMiddleOfIt) {
  const TestFault whole = fault_of("0:step-3:fail", 0, 0),
                  part = fault_of("0:step-3-part-2:fail", 0, 0);
  EXPECT_FALSE(whole.enter_step(3).ok());
  EXPECT_TRUE(whole.enter_step(31).ok());
  EXPECT_TRUE(whole.complete_part(3, 2).ok());
  EXPECT_FALSE(part.complete_part(3, 2).ok());
  EXPECT_TRUE(part.complete_part(3, 21).ok());
  EXPECT_TRUE(part.enter_step(3).ok());
}

TEST(TestFaultTest, EachStartMayHaveItsOwn) {
  const char* const asked = "1:step-9:fail,0:load:fail,1:step-12:fail";
  EXPECT_FALSE(fault_of(asked, 1, 0).enter_step(9).ok());
  EXPECT_TRUE(fault_of(asked, 1, 1).enter_step(9).ok());
  EXPECT_FALSE(fault_of(asked, 0, 1).enter("load").ok());
  EXPECT_FALSE(fault_of(asked, 1, 2).enter_step(12).ok());
  EXPECT_TRUE(fault_of(asked, 1, 3).enter_step(12).ok());
}

}  // namespace
}  // namespace shoal
