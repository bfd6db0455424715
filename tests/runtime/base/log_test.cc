#include "runtime/base/log.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/json.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

/// Captures what is written to file descriptor 2 during a test.
class LogTest : public testing::Test {
 protected:
  ~LogTest() override {
    set_log_options({});
    set_process_rank(kFrontRank);
  }
  template <typename Body>
  static std::string written_by(const Body& body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }
};

/// Replaces each digit of the line's time by a 9.
std::string with_time_masked(std::string line) {
  for (size_t i = 0; i < line.size() && line[i] != ' '; ++i) {
    if (line[i] >= '0' && line[i] <= '9') line[i] = '9';
  }
  return line;
}

TEST_F(LogTest, TextLine) {
  const std::string front = written_by([] { log_warning("low on shared memory"); });
  EXPECT_EQ(with_time_masked(front), cat("9999-99-99T99:99:99.999999Z WARNING front [", getpid(),
                                         "] low on shared memory\n"));
  set_process_rank(1);
  const std::string rank = written_by([] { log_info("loading 40 %"); });
  EXPECT_EQ(with_time_masked(rank),
            cat("9999-99-99T99:99:99.999999Z INFO rank 1 [", getpid(), "] loading 40 %\n"));
}

TEST_F(LogTest, AStatusIsPlainUnlessDebugOrAProgramReads) {
  const Status status = Status::error(Code::kNotFound, "no x", 0, "a/b/file.cc", 7)
                            .because_of(Code::kUnavailable, "no y", "a/b/file.cc", 8);
  EXPECT_EQ(explained(status), "no y\n  because no x");
  const std::string whole = "UNAVAILABLE: no y\n  because NOT_FOUND [front] b/file.cc:7 no x";
  set_log_options({.level = LogLevel::kDebug});
  EXPECT_EQ(explained(status), whole);
  set_log_options({.format = LogFormat::kJson});
  EXPECT_EQ(explained(status), whole);
}

TEST_F(LogTest, LevelsBelowAreDropped) {
  set_log_options({.level = LogLevel::kWarning});
  EXPECT_EQ(written_by([] {
              log_debug("a");
              log_info("b");
            }),
            "");
  EXPECT_NE(written_by([] { log_error("c"); }), "");
}

TEST_F(LogTest, JsonLineReadsBack) {
  set_log_options({.format = LogFormat::kJson});
  set_process_rank(2);
  const std::string hostile =
      "quote \" backslash \\ newline \n tab \t bell \a bytes \xFF\xC0\x80 \xE2\x82\xAC";
  const std::string line = written_by([&] { log_error(hostile); });
  ASSERT_TRUE(line.ends_with("}\n")) << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Result<Json> json = parse_json(line, "line");
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)["level"], "ERROR");
  EXPECT_EQ((*json)["process"], "worker");
  EXPECT_EQ((*json)["rank"], 2);
  EXPECT_EQ((*json)["pid"], getpid());
  EXPECT_EQ(
      (*json)["message"],
      "quote \" backslash \\ newline \n tab \t bell \a bytes \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD \xE2\x82\xAC");
}

TEST_F(LogTest, FieldsAreMembersOfTheJsonLine) {
  const std::string text = "a \" \n \x01 \xFF";
  const std::optional<double> known = 0.1, unknown;
  const auto log = [&] {
    log_info("done", {{"event", "test"},
                      {"text", text},
                      {"made", cat(text, "!")},
                      {"least", INT64_MIN},
                      {"int32", int32_t{-7}},
                      {"yes", true},
                      {"no", false},
                      {"known", value_or_null(known)},
                      {"unknown", value_or_null(unknown)},
                      {"ms", milliseconds_of(0.0123456)},
                      {"no_ms", milliseconds_of({})},
                      {"tiny", 5e-324},
                      {"whole", 3.0},
                      {"nan", std::nan("")},
                      {"infinite", -HUGE_VAL}});
  };
  EXPECT_TRUE(written_by(log).ends_with("] done\n"));
  set_log_options({.format = LogFormat::kJson});
  const std::string line = written_by(log);
  const std::string bad = "\xEF\xBF\xBD";
  const std::string shown = "a \\\" \\n \\u0001 " + bad;
  EXPECT_EQ(
      line.substr(std::min(line.find("\"message\""), line.size())),
      cat("\"message\":\"done\",\"event\":\"test\",\"text\":\"", shown, "\",\"made\":\"", shown,
          "!\",\"least\":-9223372036854775808,\"int32\":-7,\"yes\":true,\"no\":false,"
          "\"known\":0.1,\"unknown\":null,\"ms\":12.346,\"no_ms\":null,\"tiny\":5e-324,\"whole\":3,\"nan\":null,"
          "\"infinite\":null}\n"));
  const Result<Json> json = parse_json(line, "line", {.distinct_names = true});
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)["text"], "a \" \n \x01 " + bad);
  EXPECT_EQ((*json)["tiny"], 5e-324);
}

TEST_F(LogTest, FieldsOfALineBelowTheLevelAreDroppedWithIt) {
  set_log_options({.level = LogLevel::kWarning, .format = LogFormat::kJson});
  EXPECT_EQ(written_by([] { log_info("a", {{"event", "test"}}); }), "");
}

TEST_F(LogTest, LinesOfThreadsStayWhole) {
  constexpr int kThreads = 4, kLines = 200;
  const std::string text = written_by([] {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        for (int i = 0; i < kLines; ++i)
          log_info(cat("<", thread, " ", i, " ", std::string(200, 'x'), ">"));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  std::set<std::string> messages;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    ASSERT_TRUE(line.ends_with(std::string(200, 'x') + ">")) << line;
    messages.insert(line.substr(line.find('<')));
  }
  EXPECT_EQ(messages.size(), size_t{kThreads * kLines});
}

/// What a process of its own leaves on a terminal that is its stderr. how: how it has ended, if it
/// did not by itself.
std::string on_a_terminal(const std::function<void()>& body, std::string* how) {
  const Fd outer(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!outer.valid() || ::grantpt(outer.get()) != 0 || ::unlockpt(outer.get()) != 0) return "";
  *how = in_child([&] {
    const Fd inner(::open(::ptsname(outer.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    ::dup2(inner.get(), STDERR_FILENO);
    body();
    return std::string();
  });
  std::string shown;
  char buffer[1024];
  for (ssize_t got; (got = ::read(outer.get(), buffer, sizeof buffer)) > 0;)
    shown.append(buffer, static_cast<size_t>(got));
  return shown;
}

/// Whether this and a time of day are the beginning of the text.
bool begins_with_time(const std::string& text, const std::string& before) {
  return text.starts_with(before) &&
         with_time_masked(text.substr(before.size())).starts_with("99:99:99.999 INFO ");
}

const std::string kShown = "\r\033[Kloading 78 %\r";

TEST(ProgressLineTest, ALineOfTheLogTakesItsPlace) {
  std::string how;
  const std::string shown = on_a_terminal(
      [] {
        show_progress_line("loading 78 %");
        log_info("one");
        log_info("two");
        show_progress_line("loading 79 %");
        show_progress_line("");
        show_progress_line("");
      },
      &how);
  EXPECT_EQ(how, "");
  ASSERT_NE(shown.find(" one"), std::string::npos) << shown;
  const std::string cleared = "\r\033[K";
  EXPECT_TRUE(begins_with_time(shown, kShown + cleared)) << shown;
  EXPECT_TRUE(begins_with_time(shown.substr(shown.find(" one")), " one\r\n")) << shown;
  EXPECT_TRUE(shown.ends_with(cat("] two\r\n", cleared, "loading 79 %\r", cleared))) << shown;
}

// The front's line, which a rank knows nothing of, leaves the cursor at its beginning.
TEST(ProgressLineTest, SoDoesTheLogOfARank) {
  std::string how;
  const std::string shown = on_a_terminal(
      [] {
        set_process_rank(1);
        log_info("one");
      },
      &how);
  EXPECT_TRUE(begins_with_time(shown, "\033[K")) << shown;
}

TEST(ProgressLineTest, AnEndBySignalClearsIt) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    std::string how;
    const std::string shown = on_a_terminal(
        [number] {
          std::signal(number, SIG_DFL);
          show_progress_line("loading 78 %");
          ::raise(number);
        },
        &how);
    EXPECT_EQ(how, cat("signal ", number));
    EXPECT_EQ(shown, kShown + "\r\033[K");
  }
}

TEST(ProgressLineTest, AHandlerOfTheProgramStays) {
  std::string how;
  (void)on_a_terminal(
      [] {
        std::signal(SIGTERM, SIG_IGN);
        show_progress_line("loading 78 %");
        ::raise(SIGTERM);
      },
      &how);
  EXPECT_EQ(how, "");
}

TEST_F(LogTest, APipeHasNoProgressLine) {
  EXPECT_EQ(written_by([] { show_progress_line("loading 78 %"); }), "");
}

TEST(JsonEscapeTest, OnlyValidUtf8ComesThrough) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(json_escape(""), "");
  EXPECT_EQ(json_escape(std::string_view("a\0b", 3)), "a\\u0000b");
  EXPECT_EQ(json_escape("\x7F"), "\x7F");
  EXPECT_EQ(json_escape("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\x9F"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\x9F");
  const std::string edges =  // U+0080, U+0800, U+D7FF, U+E000, U+10000 and U+10FFFF
      "\xC2\x80 \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF";
  EXPECT_EQ(json_escape(edges), edges);
  EXPECT_EQ(json_escape("\xC3"), bad);                                // it ends too early
  EXPECT_EQ(json_escape("\xE2\x82z"), bad + bad + "z");               // it breaks off
  EXPECT_EQ(json_escape("\xC1\x81"), bad + bad);                      // overlong
  EXPECT_EQ(json_escape("\xE0\x80\x80"), bad + bad + bad);            // overlong
  EXPECT_EQ(json_escape("\xE0\x9F\xBF"), bad + bad + bad);            // overlong
  EXPECT_EQ(json_escape("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(json_escape("\xF0\x80\x80\x80"), bad + bad + bad + bad);  // overlong
  EXPECT_EQ(json_escape("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // above U+10FFFF
  EXPECT_EQ(json_escape("\xFE\xFF"), bad + bad);
}

}  // namespace
}  // namespace shoal
