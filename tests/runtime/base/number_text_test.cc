#include "runtime/base/number_text.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(NumberText, HasNoPowersOfTen) {
  EXPECT_EQ(with_digits(0.25, 3), "0.25");
  EXPECT_EQ(with_digits(20, 3), "20");
  EXPECT_EQ(with_digits(12.345, 3), "12.3");
  EXPECT_EQ(with_digits(3600, 3), "3600");
  EXPECT_EQ(with_digits(1e6, 6), "1000000");
  EXPECT_EQ(with_digits(1e9, 3), "1000000000");
  EXPECT_EQ(with_digits(0.00002, 3), "0.000020");
  EXPECT_EQ(with_digits(0, 3), "0");
}

TEST(NumberText, HasAsManyDecimalsAsAsked) {
  EXPECT_EQ(with_decimals(0.25, 3), "0.250");
  EXPECT_EQ(with_decimals(2.5e9, 0), "2500000000");
}

}  // namespace
}  // namespace shoal
