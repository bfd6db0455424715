#include "server/shmtest/rows.h"

#include <csignal>
#include <gtest/gtest.h>

#include "server/shmtest/report.h"
#include "tests/server/shmtest/outcomes.h"

namespace shoal::shmtest {
namespace {

TEST(ShmtestRowsTest, TheControlMustExitWith0EvenIfErrorsAreAccepted) {
  Outcome control = exited(1);
  control.condition = "host";
  control.output_tail = "no room\n";
  const std::string must = "exit code 1; host must exit with 0 even with --accept error";
  EXPECT_EQ(reason_text(control), "exit code 1");
  control.accept = Accept::kError;
  EXPECT_TRUE(control.failed());
  EXPECT_EQ(control.reason(), "exit code 1");
  EXPECT_EQ(reason_text(control), must);
  EXPECT_TRUE(progress_line(control, 1, 3).ends_with(cat(must, "\n")));
  EXPECT_TRUE(
      table_row(control, kLeastWidth, false).ends_with(cat(must, "; last line: \"no room\"\n")));
  EXPECT_TRUE(table({.outcomes = {control}, .control_failed = true}, 3)
                  .starts_with(cat("--- host: ", must, "\n")));
  control.exit_code = 0;
  EXPECT_TRUE(control.passed());
  EXPECT_EQ(reason_text(control), "");
}

TEST(ShmtestRowsTest, LinesOfProgressAreAligned) {
  const std::string ninth = progress_line(exited(0), 9, 11),
                    tenth = progress_line(exited(0), 10, 11);
  EXPECT_TRUE(ninth.starts_with("shmtest: [ 9/11] 4k ")) << ninth;
  EXPECT_TRUE(tenth.starts_with("shmtest: [10/11] 4k ")) << tenth;
  EXPECT_EQ(ninth.size(), tenth.size());
  EXPECT_TRUE(progress_line(exited(0), 1, 3).starts_with("shmtest: [1/3] 4k "));
  // How many sizes a search tries is not known, and seldom more than 99.
  EXPECT_EQ(progress_line(exited(0), 9, 0).size(), progress_line(exited(0), 10, 0).size());
  EXPECT_TRUE(progress_line(exited(0), 100, 0).starts_with("shmtest: [100] 4k "));
}

TEST(ShmtestRowsTest, ALookThatNobodyTookIsNoFigure) {
  Outcome brief = exited(0), looked = exited(0), absent = exited(0);
  looked.peak_bytes = 0;
  absent.end = End::kNotStarted;
  const auto row = [](const Outcome& outcome) {
    const std::string text = table_row(outcome, kLeastWidth, false);
    return text.substr(text.find("0.00") + 9);
  };
  EXPECT_TRUE(row(brief).starts_with("0        no look       -")) << row(brief);
  EXPECT_TRUE(row(looked).starts_with("0        0 B seen      -")) << row(looked);
  EXPECT_TRUE(row(absent).starts_with("-        -             could not")) << row(absent);
  // A process that a SIGBUS killed may have touched pages that no look saw.
  Outcome bus = looked;
  bus.sigbus_seen = true;
  EXPECT_TRUE(row(bus).starts_with("0        killed first  SIGBUS in one")) << row(bus);
  const std::string first = "\nkilled first: a SIGBUS killed a process, and no look had seen";
  EXPECT_NE(table({.outcomes = {bus}}, 1).find(first), std::string::npos);
  bus.peak_bytes = 1 << 20;
  EXPECT_TRUE(row(bus).starts_with("0        >= 1.0 MiB    SIGBUS in one")) << row(bus);
  EXPECT_EQ(table({.outcomes = {bus, looked}}, 2).find(first), std::string::npos);
  const std::string sampled = "shm seen: sampled every 10 ms; a short peak may be higher.\n";
  const std::string means =
      "no look: it ended before the first look (10 ms), too soon to see what it took.\n";
  EXPECT_NE(table({.outcomes = {brief, looked}}, 2).find(cat("\n", sampled, means, "2 passed")),
            std::string::npos);
  EXPECT_EQ(table({.outcomes = {looked, absent}}, 2).find("no look"), std::string::npos);
  EXPECT_EQ(table({.outcomes = {brief, absent}}, 2).find(sampled), std::string::npos);
  const std::string xml = junit_report({.outcomes = {brief, looked}}, {"a"}, 2);
  EXPECT_NE(xml.find("name=\"shm_peak_bytes\" value=\"unknown\""), std::string::npos) << xml;
  EXPECT_NE(xml.find("name=\"shm_peak_bytes\" value=\"0\""), std::string::npos) << xml;
}

TEST(ShmtestRowsTest, AGreenTableSaysIfNoUseWasSeen) {
  const std::string none =
      " 0 failed, 0 skipped\nNo use of /dev/shm was seen in any condition: the command needs none, or "
      "found none that it could use, or its use was too short to be looked at (every 10 ms).\n";
  Outcome brief = exited(0), looked = brief, took = brief, leaves = brief, bus = brief;
  looked.peak_bytes = 0;
  took.peak_bytes = 4096;
  leaves.left = {{"nccl-a", 0}};
  bus.sigbus_seen = true;
  EXPECT_TRUE(table({.outcomes = {brief, looked}}, 2).ends_with(none));
  // Where some was seen, or the command failed, the report says more than that, and whoever stops a
  // run knows that it is not all.
  for (const RunResult& run : {RunResult{.outcomes = {brief, took}},
                               {.outcomes = {brief, leaves}},
                               {.outcomes = {brief, bus}},
                               {.outcomes = {brief, exited(1)}},
                               {.outcomes = {brief}, .stopped_by = SIGINT}})
    EXPECT_EQ(table(run, run.outcomes.size()).find("No use"), std::string::npos);
}

}  // namespace
}  // namespace shoal::shmtest
