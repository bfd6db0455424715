#include "server/shmtest/report.h"

#include <csignal>
#include <gtest/gtest.h>

#include "runtime/base/json.h"

namespace shoal::shmtest {
namespace {

Outcome exited(int code) {
  Outcome outcome;
  outcome.condition = "4k";
  outcome.end = End::kExited;
  outcome.exit_code = code;
  return outcome;
}

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
  EXPECT_TRUE(exited(128 + SIGBUS).sigbus());
  Outcome left = exited(0);
  left.left = {{"nccl-a", 4096}};
  EXPECT_FALSE(left.passed());
  EXPECT_EQ(left.reason(), "left 1 name (4.0 KiB) in /dev/shm: nccl-a");
  Outcome orphans = exited(0);
  orphans.orphans = {"7 sleep"};
  EXPECT_EQ(orphans.reason(), "1 outlived it: 7 sleep");
  Outcome mpi = exited(1);
  mpi.output_tail = "rank 1 exited on signal 7 (Bus error)";
  EXPECT_TRUE(mpi.sigbus());
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
  EXPECT_EQ(outcome.peak_bytes, 0U);  // it is cut off, so it is ignored
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
  const std::vector<Outcome> outcomes = {exited(0), bad, skipped};
  const Json json = parse_json(json_report(outcomes, {"sh", "-c", "\xfe"}), "report").value();
  EXPECT_EQ(json["passed"], 1);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["skipped"], 1);
  const std::string xml = junit_report(outcomes, {"a&b"});
  EXPECT_NE(xml.find("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""), std::string::npos)
      << xml;
  EXPECT_NE(xml.find("no &lt;cgroup&gt;"), std::string::npos);
  EXPECT_NE(xml.find("a&amp;b"), std::string::npos);
}

}  // namespace
}  // namespace shoal::shmtest
