// The line that says what a batch has done.
#include "server/commands/batch_report.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(BatchReportTest, TheSummaryHasTheRightPlurals) {
  EXPECT_EQ(
      summary({24, 0, 512, 3072, 5.2}),
      "24 requests, 512 prompt tokens, 3072 generated tokens in 5.2 s (without the start): 591 "
      "tokens/s");
  EXPECT_EQ(
      summary({1, 0, 1, 1, 1}),
      "1 request, 1 prompt token, 1 generated token in 1 s (without the start): 1.0 tokens/s");
  EXPECT_EQ(
      summary({3, 2, 0, 5, 2}),
      "3 requests (1 done, 2 failed), 0 prompt tokens, 5 generated tokens in 2 s (without the "
      "start): 2.5 tokens/s");
  EXPECT_EQ(summary({1, 0, 1, 7200, 3600}),
            "1 request, 1 prompt token, 7200 generated tokens in 3600 s (without the start): 2.0 "
            "tokens/s");
}

TEST(BatchReportTest, LessThanASecondHasNoSpeed) {
  EXPECT_EQ(summary({2, 0, 4, 8, 0.00256}),
            "2 requests, 4 prompt tokens, 8 generated tokens in 0.00256 s (without the start)");
  EXPECT_EQ(summary({2, 0, 4, 800, 0.99}),
            "2 requests, 4 prompt tokens, 800 generated tokens in 0.99 s (without the start)");
}

TEST(BatchReportTest, OneLineHasAnAnswerAndTwoHaveThem) {
  EXPECT_EQ(answers_text(20, 22), "20 of 22 lines have an answer");
  EXPECT_EQ(answers_text(0, 22), "0 of 22 lines have an answer");
  EXPECT_EQ(answers_text(1, 22), "1 of 22 lines has an answer");
  EXPECT_EQ(answers_text(0, 1), "0 of 1 line has an answer");
}

TEST(BatchReportTest, NothingHasNoSpeed) {
  EXPECT_EQ(summary({1, 1, 0, 0, 2}),
            "1 request (0 done, 1 failed), 0 prompt tokens, 0 generated tokens in 2 s (without the "
            "start)");
}

}  // namespace
}  // namespace shoal
