#include "server/shmtest/report.h"

#include <csignal>
#include <gtest/gtest.h>
#include <optional>
#include <tuple>

#include "runtime/base/json.h"
#include "server/shmtest/rows.h"
#include "server/shmtest/xml.h"
#include "tests/server/shmtest/outcomes.h"

namespace shoal::shmtest {
namespace {

TEST(ShmtestReportTest, XmlEscapesMarkup) {
  EXPECT_EQ(xml_escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &apos;d&apos;");
  EXPECT_EQ(xml_escape("tab\tline\nü€😀"), "tab\tline\nü€😀");
}

TEST(ShmtestReportTest, XmlCannotHoldSomeBytes) {
  const std::string replaced = "\xEF\xBF\xBD";
  for (const char* wrong : {"\x01", "\x1b", "\xff", "\x80", "\xc0\xaf"}) {
    EXPECT_EQ(xml_escape(wrong).substr(0, 3), replaced) << wrong;
  }
  EXPECT_EQ(xml_escape(std::string_view("a\0b", 3)), "a" + replaced + "b");
  EXPECT_EQ(xml_escape("x\xe2\x82"), "x" + replaced + replaced);          // it is cut off
  EXPECT_EQ(xml_escape("\xed\xa0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(xml_escape("\xf4\x90\x80\x80").substr(0, 3), replaced);       // beyond Unicode
  EXPECT_EQ(xml_escape("\xef\xbf\xbf"), replaced + replaced + replaced);  // it is not a character
}

TEST(ShmtestReportTest, VerdictsAndReasons) {
  EXPECT_TRUE(exited(0).passed());
  EXPECT_EQ(exited(3).reason(), "exit code 3");
  EXPECT_EQ(exited(128 + SIGBUS).reason(), "exit code 135 (128 + SIGBUS)");
  EXPECT_EQ(exited(128 + SIGBUS).sigbus(), true);
  Outcome left = exited(0);
  left.left = {{"nccl-a", 4096}};
  EXPECT_FALSE(left.passed());
  EXPECT_EQ(left.reason(), "left 1 name (4.0 KiB) in /dev/shm: nccl-a");
  left.left[0].bytes = 0;
  EXPECT_EQ(left.reason(), "left 1 name (0 B) in /dev/shm: nccl-a");
  Outcome orphans = exited(0);
  orphans.orphans = {"7 sleep"};
  EXPECT_EQ(orphans.reason(), "1 process outlived it: sleep (pid 7)");
  orphans.oom_kills = 2;
  EXPECT_EQ(orphans.reason(),
            "2 processes killed by the cgroup's OOM killer; 1 process outlived it: sleep (pid 7)");
  Outcome slow = exited(0);
  slow.end = End::kHung;
  slow.seconds = 60.001;
  slow.orphans = {"7 sleep"};
  EXPECT_EQ(slow.reason(), "hang: killed after 60 s (--timeout)");
  const std::string block =
      "--- 4k: hang: killed after 60 s (--timeout)\nrunning: sleep (pid 7)\n"
      "the command must end by itself: start the server, ask it, stop it\n";
  EXPECT_TRUE(table({.outcomes = {slow}}, 1).starts_with(block));
  Outcome mpi = exited(1);
  mpi.output_tail = "rank 1 exited on signal 7 (Bus error)";
  EXPECT_EQ(mpi.sigbus(), true);
}

TEST(ShmtestReportTest, ACompleteTraceDecidesAboutSigbus) {
  using namespace std::string_view_literals;
  Outcome signs = exited(1);
  signs.output_tail = "it said Bus error";
  Outcome none = exited(1);
  EXPECT_EQ(signs.sigbus(), true);
  EXPECT_EQ(none.sigbus(), std::nullopt);
  for (Outcome* outcome : {&signs, &none}) {
    apply_records("trace complete\0"sv, *outcome);
    EXPECT_EQ(outcome->sigbus(), false);
    apply_records("sigbus 12 a b\0"sv, *outcome);
    EXPECT_EQ(outcome->sigbus(), true);
    EXPECT_EQ(outcome->reason(), "exit code 1; SIGBUS killed process 12 of its namespace (a b)");
  }
  Outcome ended = exited(1);
  apply_records("trace ended\0trace_note process 7 (gdb) calls ptrace itself\0"sv, ended);
  EXPECT_EQ(ended.sigbus(), std::nullopt);
  // The command may know what it does if it exits with 0.
  Outcome well = exited(0);
  apply_records("trace complete\0sigbus 12 a\0"sv, well);
  EXPECT_TRUE(well.passed());
  EXPECT_EQ(well.reason(), "SIGBUS killed process 12 of its namespace (a)");
  Outcome in_place = exited(0);
  apply_records("in_place \0sigbus 12 a\0"sv, in_place);
  EXPECT_EQ(in_place.reason(), "SIGBUS killed process 12 (a)");
  const std::string text = table({.outcomes = {ended, well}}, 2);
  EXPECT_NE(text.find("\nA SIGBUS that leaves no sign is not seen in 4k: process 7 (gdb) calls"),
            std::string::npos)
      << text;
  const Json json =
      parse_json(json_report({.outcomes = {ended, well}}, {"a"}, "0.1.0"), "report").value();
  EXPECT_TRUE(json["conditions"][0]["sigbus"].is_null());
  EXPECT_EQ(json["conditions"][0]["trace"], "ended");
  EXPECT_EQ(json["conditions"][1]["sigbus_process"], "12 a");
}

TEST(ShmtestReportTest, AConditionThatNeverCameShowsNothing) {
  Outcome early = exited(0);
  early.never_came = "the command ended after 0.10 s, before /dev/shm was filled";
  EXPECT_TRUE(early.skipped());
  EXPECT_FALSE(early.passed() || early.failed());
  EXPECT_EQ(early.reason(), early.never_came);
  // A failure is one all the same.
  Outcome bad = early;
  bad.exit_code = 3;
  EXPECT_TRUE(bad.failed());
  Outcome leaves = early;
  leaves.left = {{"nccl-a", 4096}};
  EXPECT_TRUE(leaves.failed());
}

TEST(ShmtestReportTest, ASigbusIsExplainedOnce) {
  const std::string means =
      "SIGBUS: mostly, a process touched a page for which /dev/shm had no room; posix_fallocate() "
      "reserves the pages first, and fails with ENOSPC instead.";
  const std::string search = " shmtest --min-size finds how much room is enough.\n";
  Outcome bad = exited(1), survived = exited(0);
  bad.sigbus_seen = survived.sigbus_seen = true;
  bad.peak_bytes = 0;
  EXPECT_TRUE(table({.outcomes = {bad, bad}}, 2)
                  .ends_with(means + search + "0 passed, 2 failed, 0 skipped\n"));
  EXPECT_EQ(table({.outcomes = {bad, bad}}, 2).find(means),
            table({.outcomes = {bad, bad}}, 2).rfind(means));
  EXPECT_NE(search_report({.outcomes = {bad}, .search = {.wanted = true, .fails = 4096}})
                .find(means + "\n"),
            std::string::npos);
  EXPECT_NE(junit_report({.outcomes = {bad}}, {"a"}, 1).find(means + search + "</failure>"),
            std::string::npos);
  EXPECT_EQ(table({.outcomes = {survived, exited(1)}}, 2).find("SIGBUS: "), std::string::npos);
}

TEST(ShmtestReportTest, AnErrorMayBeAccepted) {
  Outcome refused = exited(3);
  EXPECT_TRUE(refused.failed());
  refused.accept = Accept::kError;
  EXPECT_TRUE(refused.passed());
  EXPECT_EQ(refused.reason(), "exit code 3, accepted");
  Outcome died = exited(128 + SIGSEGV), leaves = refused, bus = refused, hung = refused;
  died.accept = Accept::kError;
  leaves.left = {{"nccl-a", 4096}};
  bus.output_tail = "worker 1 died: Bus error";
  hung.end = End::kHung;
  for (const Outcome& wrong : {died, leaves, bus, hung}) EXPECT_TRUE(wrong.failed());
}

TEST(ShmtestReportTest, ATableSaysIfNothingWasTested) {
  Outcome skipped;
  skipped.condition = "host";
  skipped.end = End::kSkipped;
  const RunResult all = {.outcomes = {skipped}}, control = {.outcomes = {skipped, exited(0)}};
  EXPECT_TRUE(table(all, 1).ends_with(
      "1 skipped\nNothing was tested, because every condition was skipped: exit code 69.\n"));
  EXPECT_TRUE(
      table(control, 2)
          .ends_with(
              "1 skipped\nNothing was tested, because the control (host) was skipped: exit code 69.\n"));
  // A failure is one all the same, and whoever stops a run knows it.
  for (const RunResult& run : {RunResult{.outcomes = {skipped, exited(1)}},
                               {.outcomes = {skipped}, .stopped_by = SIGINT},
                               {.outcomes = {exited(0)}}})
    EXPECT_FALSE(nothing_tested(run));
}

TEST(ShmtestReportTest, ACommandThatNeverWorkedIsNoProof) {
  Outcome refused = exited(3), skipped = exited(0);
  refused.accept = Accept::kError;
  skipped.never_came = "the command ended before /dev/shm was filled";
  Outcome died = refused;
  died.end = End::kSignalled;
  const RunResult never = {.outcomes = {refused, died}};
  Outcome control = exited(1), absent = exited(0);
  control.condition = "host";
  absent.end = End::kSkipped;
  // Whether an error was accepted or not.
  for (const RunResult& run : {never, {.outcomes = {exited(3), absent}}, {.outcomes = {died}}})
    EXPECT_TRUE(never_worked(run) && lacks_control(run));
  // It works somewhere, also if that shows nothing about the condition, or it never ran.
  for (const std::vector<Outcome>& outcomes :
       {std::vector{refused, exited(0)}, {refused, skipped}, {absent}, {}})
    EXPECT_FALSE(never_worked({.outcomes = outcomes}) || lacks_control({.outcomes = outcomes}));
  // The control is there, and has shown it.
  const RunResult shown = {.outcomes = {control}, .control_failed = true};
  EXPECT_TRUE(never_worked(shown) && !lacks_control(shown));
  EXPECT_EQ(junit_report(shown, {"a"}, 2).find("warning"), std::string::npos);
  const std::string xml = junit_report(never, {"a"}, 2);
  EXPECT_NE(
      xml.find("<properties><property name=\"warning\" value=\"the command exited with 0 in no "
               "condition, so that "),
      std::string::npos)
      << xml;
  EXPECT_EQ(junit_report({.outcomes = {exited(0)}}, {"a"}, 1).find("warning"), std::string::npos);
  for (const bool worked : {false, true}) {
    const RunResult run = worked ? RunResult{.outcomes = {refused, exited(0)}} : never;
    const Json json = parse_json(json_report(run, {"a"}, "0.1.0"), "report").value();
    EXPECT_EQ(json["never_worked"], !worked);
  }
}

TEST(ShmtestReportTest, TheTableComesLastWithTheReasons) {
  Outcome bad = exited(1);
  bad.output_tail = "line 1\nOSError: [Errno 28] No space left on device\n\n";
  Outcome control = exited(1);
  control.condition = "host";
  const std::string text = table({.outcomes = {bad, exited(0)}}, 2);
  const size_t header = text.find("\ncondition ");
  EXPECT_LT(text.find("--- 4k: exit code 1"), header) << text;
  EXPECT_NE(
      text.find("exit code 1; last line: \"OSError: [Errno 28] No space left on device\"", header),
      std::string::npos);
  EXPECT_TRUE(text.ends_with("1 passed, 1 failed, 0 skipped\n"));
  // After a SIGBUS the last line is of what followed from it.
  bad.sigbus_seen = true;
  EXPECT_EQ(table({.outcomes = {bad}}, 1).find("last line"), std::string::npos);
  Outcome leaves = exited(0);
  leaves.left = {{"nccl-a", 9641984}};
  EXPECT_NE(
      table({.outcomes = {leaves}}, 1).find("\nleft in /dev/shm: nccl-a, 9641984 B (9.2 MiB)\n"),
      std::string::npos);
  const std::string alone = table({.outcomes = {control}, .control_failed = true}, 11);
  EXPECT_NE(alone.find("nothing can be concluded"), std::string::npos);
  EXPECT_NE(alone.find(" 10 other conditions were not run"), std::string::npos);
  const std::string xml = junit_report({.outcomes = {control}, .control_failed = true}, {"a"}, 2);
  EXPECT_NE(
      xml.find(
          "nothing can be concluded about /dev/shm: 1 other condition was not run.\n</failure>"),
      std::string::npos)
      << xml;
  // If nothing else was asked for, it is itself what was to be tested.
  EXPECT_TRUE(table({.outcomes = {control}, .control_failed = true}, 1).ends_with("0 skipped\n"));
  // Whoever stops a run, or a failure, leaves a part of it undone.
  EXPECT_TRUE(table({.outcomes = {exited(0)}, .stopped_by = SIGINT}, 3)
                  .ends_with("\nSIGINT stopped the run: 2 other conditions were not run.\n"));
  const std::string fast =
      "\nThe first failure ended the run (--fail-fast): 1 other condition was not run.\n";
  EXPECT_TRUE(table({.outcomes = {exited(1)}}, 2).ends_with(fast));
  EXPECT_NE(junit_report({.outcomes = {exited(1)}}, {"a"}, 2).find(fast + "</failure>"),
            std::string::npos);
  const std::string pair = table({.outcomes = {control}, .control_failed = true}, 2);
  EXPECT_NE(pair.find(" 1 other condition was not run"), std::string::npos) << pair;
}

TEST(ShmtestReportTest, AVerdictMayHaveAColourAndNoColumnMoves) {
  Outcome skipped = exited(0);
  skipped.never_came = "the command ended first";
  const std::vector<std::tuple<Outcome, std::string, std::string>> cases = {
      {exited(0), "pass", "\x1b[32mpass\x1b[0m"},
      {exited(1), "FAIL", "\x1b[1;31mFAIL\x1b[0m"},
      {skipped, "skip", "\x1b[33mskip\x1b[0m"}};
  for (const auto& [outcome, word, painted] : cases) {
    const RunResult run = {.outcomes = {outcome}};
    const std::vector<std::pair<std::string, std::string>> texts = {
        {table(run, 1), table(run, 1, true)},
        {search_row(outcome, true), search_row(outcome, true, true)},
        {progress_line(outcome, 1, 1), progress_line(outcome, 1, 1, true)}};
    for (const auto& [plain, coloured] : texts) {
      EXPECT_EQ(plain.find('\x1b'), std::string::npos);
      const size_t at = coloured.find(painted);
      ASSERT_NE(at, std::string::npos) << coloured;
      EXPECT_EQ(std::string(coloured).replace(at, painted.size(), word), plain);
    }
  }
}

TEST(ShmtestReportTest, ASearchHasEachStepOnce) {
  Outcome control = exited(0), small = exited(1);
  control.condition = "host";
  control.peak_bytes = small.peak_bytes = 0;
  small.output_tail = "no room\n";
  const std::string first = search_row(control, true), second = search_row(small, false);
  EXPECT_TRUE(first.starts_with(
      "condition   result  seconds  exit     reason\nhost        pass    0.00     0        -\n"))
      << first;
  EXPECT_TRUE(second.starts_with("4k          FAIL    ")) << second;
  EXPECT_TRUE(second.ends_with(" exit code 1; last line: \"no room\"\n")) << second;
  RunResult run = {.outcomes = {control, small},
                   .search = {.wanted = true, .passes = 66U << 20, .fails = 64U << 20}};
  EXPECT_TRUE(search_report(run).ends_with(
      "The smallest /dev/shm that passed here: 66m (66.0 MiB); it failed in 64m. The search is exact "
      "to 1/32 of the size, or a page. A need that varies gives another figure, so leave room: "
      "--shm-size=128m\n"))
      << search_report(run);
  run.search.passes = (64U << 20) - 4096;  // a page of room would be none
  EXPECT_TRUE(search_report(run).ends_with(" --shm-size=128m\n")) << search_report(run);
  run.search.passes = 66U << 20;
  // One that was stopped is not exact.
  run.search.fails = 4096;
  run.stopped_by = SIGINT;
  EXPECT_EQ(
      search_report(run),
      "\n--- 4k: exit code 1\nthe end of its output:\nno room\n\n"
      "The search was stopped before its end. The smallest /dev/shm that passed here: 66m (66.0 "
      "MiB); it failed in 4k.\n");
  run.search = {.wanted = true};
  EXPECT_TRUE(
      search_report(run).ends_with(" was stopped before its end. No size was tried to its end.\n"));
  // A page is enough.
  EXPECT_EQ(search_report({.outcomes = {control}, .search = {.wanted = true, .passes = 4096}}),
            "The smallest /dev/shm that passed here: 4k (4.0 KiB); no size failed.\n");
}

TEST(ShmtestReportTest, RecordsMayBeCutAndOverruled) {
  Outcome outcome;
  using namespace std::string_view_literals;
  apply_records("milliseconds 1500\0left 4096 a b\0notstarted no such file\0exit 1\0peak 12"sv,
                outcome);
  // The first reason is kept. The exit code is that of our own child.
  EXPECT_EQ(outcome.end, End::kNotStarted);
  EXPECT_DOUBLE_EQ(outcome.seconds, 1.5);
  ASSERT_EQ(outcome.left.size(), 1U);
  EXPECT_EQ(outcome.left[0].name, "a b");
  EXPECT_EQ(outcome.peak_bytes, std::nullopt);  // it is cut off, so it is ignored
  apply_records("peak 0\0"sv, outcome);
  EXPECT_EQ(outcome.peak_bytes, 0U);
  Outcome broken;
  apply_records("nonsense\0 \0left\0"sv, broken);
  EXPECT_EQ(broken.end, End::kBroken);
  EXPECT_FALSE(broken.passed());
}

TEST(ShmtestReportTest, DocumentsCountAndParse) {
  Outcome skipped;
  skipped.condition = "cgroup-32m";
  skipped.end = End::kSkipped;
  skipped.detail = "no <cgroup>";
  Outcome bad = exited(1);
  bad.output_tail = "\xff";
  Outcome fine = exited(0);
  fine.peak_bytes = 0;
  const std::vector<Outcome> outcomes = {fine, bad, skipped};
  const RunResult run = {.outcomes = outcomes};
  const Json json = parse_json(json_report(run, {"sh", "-c", "\xfe"}, "0.1.0"), "report").value();
  EXPECT_EQ(json["passed"], 1);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["skipped"], 1);
  EXPECT_EQ(json["control_failed"], false);
  const Json &good = json["conditions"][0], &not_run = json["conditions"][2];
  EXPECT_EQ(good.at("shm_peak_bytes"), 0);
  for (const Json& nothing :
       {good.at("reason"), good.at("output_tail"), json["conditions"][1].at("shm_peak_bytes"),
        not_run.at("output_tail"), not_run.at("shm_peak_bytes"), json.at("min_size_bytes"),
        json.at("largest_failing_bytes")})
    EXPECT_TRUE(nothing.is_null()) << nothing;
  const std::string xml = junit_report(run, {"/bin/a&b"}, 3);
  EXPECT_NE(xml.find("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("no &lt;cgroup&gt;"), std::string::npos);
  EXPECT_NE(xml.find("classname=\"shmtest.a&amp;b\""), std::string::npos) << xml;
}

}  // namespace
}  // namespace shoal::shmtest
