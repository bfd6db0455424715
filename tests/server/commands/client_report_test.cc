// The lines below an answer.
#include "server/commands/client_report.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(ClientReportTest, ASpeedNeedsEnoughTokensToBeMeasured) {
  EXPECT_EQ(figures(17, 3, "stop", 0.5, 1.5),
            "shoal client: 17 tokens after a prompt of 3, finish reason stop, first token after "
            "0.500 s, then 16.0 tokens/s\n");
  EXPECT_EQ(figures(16, 3, "length", 0.5, 1.5),
            "shoal client: 16 tokens after a prompt of 3, finish reason length, first token after "
            "0.500 s\n");
  EXPECT_EQ(figures(1, 3, "stop", 0.5, 0.5),
            "shoal client: 1 token after a prompt of 3, finish reason stop, first token after "
            "0.500 s\n");
}

TEST(ClientReportTest, TokensThatComeAtOnceHaveNoSpeed) {
  EXPECT_EQ(figures(40, 3, "stop", 0.5, 0.5),
            "shoal client: 40 tokens after a prompt of 3, finish reason stop, first token after "
            "0.500 s\n");
}

TEST(ClientReportTest, TheFlagThatHasEndedTheAnswerIsNamed) {
  EXPECT_EQ(length_note(true, 12, 12), " (stopped at --max-tokens 12)");
  EXPECT_EQ(length_note(true, 12, 8), "");  // at the length of the model
  EXPECT_EQ(length_note(true, std::nullopt, 8), "");
  EXPECT_EQ(length_note(false, 12, 12), "");  // a stop at the last token
}

TEST(ClientReportTest, WhoLeavesTheSeedToTheServerIsTold) {
  GenerationRequest request;
  const std::string said =
      "shoal client: the request has no seed, so if the server samples, the next answer may be another; "
      "--seed N or --temperature 0 avoids that\n";
  EXPECT_EQ(seed_hint(request), said);
  request.temperature = 0.7;
  EXPECT_EQ(seed_hint(request), said);
  request.temperature = 0;
  EXPECT_STREQ(seed_hint(request), "");
  request.temperature.reset();
  request.seed = 0;
  EXPECT_STREQ(seed_hint(request), "");
}

}  // namespace
}  // namespace shoal
