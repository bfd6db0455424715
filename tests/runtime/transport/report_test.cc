#include "runtime/transport/report.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(TransportReport, KeepsTheLastRestartsAndTheNumberOfAll) {
  // A server that loses a rank every two minutes does this for a year.
  TransportReport report;
  for (int restart = 0; restart < 262'800; ++restart) report.add_restart(cat("reason ", restart));
  EXPECT_EQ(report.restart_count, 262'800);
  ASSERT_EQ(report.restarts.size(), TransportReport::kMostRestarts);
  EXPECT_EQ(report.restarts.front(), "reason 262780");
  EXPECT_EQ(report.restarts.back(), "reason 262799");
  EXPECT_EQ(to_json(report)["restart_count"], 262'800);
  EXPECT_EQ(to_json(report)["restarts"].size(), TransportReport::kMostRestarts);
  EXPECT_NE(to_text(report).find("restarts: 262800, the last of them:\n  restarted: reason 262780"),
            std::string::npos);
  TransportReport young;
  young.add_restart("once");
  EXPECT_EQ(to_text(young).find("restarts:"), std::string::npos);
}

}  // namespace
}  // namespace shoal
