// The line that says what a batch has done.
#include "server/commands/batch_report.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(BatchReportTest, TheSummaryHasTheRightPlurals) {
  EXPECT_EQ(summary({24, 0, 512, 3072, 5.2}),
            "24 requests, 512 prompt tokens, 3072 generated tokens in 5.2 s: 591 tokens/s");
  EXPECT_EQ(summary({1, 0, 1, 1, 0.5}),
            "1 request, 1 prompt token, 1 generated token in 0.5 s: 2.0 tokens/s");
  EXPECT_EQ(summary({3, 2, 0, 5, 2}),
            "3 requests (2 failed), 0 prompt tokens, 5 generated tokens in 2 s: 2.5 tokens/s");
  EXPECT_EQ(summary({2, 0, 4, 8, 0.00256}),
            "2 requests, 4 prompt tokens, 8 generated tokens in 0.00256 s: 3125 tokens/s");
  EXPECT_EQ(summary({1, 0, 1, 7200, 3600}),
            "1 request, 1 prompt token, 7200 generated tokens in 3600 s: 2.0 tokens/s");
}

TEST(BatchReportTest, OneLineHasAnAnswerAndTwoHaveThem) {
  EXPECT_EQ(answers_text(20, 22), "20 of 22 lines have an answer");
  EXPECT_EQ(answers_text(0, 22), "0 of 22 lines have an answer");
  EXPECT_EQ(answers_text(1, 22), "1 of 22 lines has an answer");
  EXPECT_EQ(answers_text(0, 1), "0 of 1 line has an answer");
}

TEST(BatchReportTest, NothingHasNoSpeed) {
  EXPECT_EQ(summary({0, 0, 0, 0, 0}), "0 requests, 0 prompt tokens, 0 generated tokens in 0 s");
}

}  // namespace
}  // namespace shoal
