#include "runtime/base/quantity.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Quantity, BytesAreSaidRoundedToo) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(20'480), "20480 B");
  EXPECT_EQ(bytes_text(1'052'672), "1052672 B (1.0 MiB)");
  EXPECT_EQ(bytes_text(int64_t{10} << 30), "10737418240 B (10.0 GiB)");
  EXPECT_EQ(bytes_text(262'144), "262144 B (256 KiB)");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1048575 B (1.0 MiB)");
  EXPECT_EQ(rounded_bytes_text(20'480), "");
  EXPECT_EQ(rounded_bytes_text(1'052'672), "1.0 MiB");
}

TEST(Quantity, RatesHaveThreeDigitsAndAPrefix) {
  EXPECT_EQ(metric_text(0, "B/s"), "0.00 B/s");
  EXPECT_EQ(metric_text(2.825e8, "B/s"), "282 MB/s");
  EXPECT_EQ(metric_text(9.034e9, "B/s"), "9.03 GB/s");
  EXPECT_EQ(metric_text(12.5e9, "FLOP"), "12.5 GFLOP");
  EXPECT_EQ(metric_text(9.996e3, "FLOP/s"), "10.0 kFLOP/s");
  EXPECT_EQ(metric_text(9.9949e5, "B/s"), "999 kB/s");
  EXPECT_EQ(metric_text(9.996e5, "B/s"), "1.00 MB/s");
  EXPECT_EQ(metric_text(3.2e18, "B/s"), "3200 PB/s");
}

TEST(Quantity, RoundSizesHoldTheBytes) {
  EXPECT_EQ(round_size(1), "1m");
  EXPECT_EQ(round_size(1 << 20), "1m");
  EXPECT_EQ(round_size((1 << 20) + 1), "2m");
  EXPECT_EQ(round_size(38'600'704), "64m");
  EXPECT_EQ(round_size(600 << 20), "1g");
  EXPECT_EQ(round_size((int64_t{2} << 30) + 1), "3g");
  EXPECT_EQ(round_quantity(38'600'704), "64Mi");
  EXPECT_EQ(round_quantity(int64_t{3} << 30), "3Gi");
}

TEST(Quantity, AgesAreRounded) {
  EXPECT_EQ(age_text(5), "5 s");
  EXPECT_EQ(age_text(119), "119 s");
  EXPECT_EQ(age_text(120), "2 min");
  EXPECT_EQ(age_text(600), "10 min");
  EXPECT_EQ(age_text(7'200), "2 h");
  EXPECT_EQ(age_text(864'000), "10 days");
}

}  // namespace
}  // namespace shoal
