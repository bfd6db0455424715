#include "runtime/base/counted.h"

#include <cstdint>
#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(CountedTest, OnlyOneIsSingular) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(size_t{2}, "rank"), "2 ranks");
  EXPECT_EQ(counted(int64_t{-1}, "rank"), "-1 ranks");
}

TEST(CountedTest, ANounMayHaveAPluralOfItsOwn) {
  EXPECT_EQ(counted(1, "process", "processes"), "1 process");
  EXPECT_EQ(counted(3, "process", "processes"), "3 processes");
  EXPECT_EQ(counted(1, "request runs", "requests run"), "1 request runs");
}

}  // namespace
}  // namespace shoal
