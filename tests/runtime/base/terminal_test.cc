#include "runtime/base/terminal.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/fd.h"

namespace shoal {
namespace {

/// A terminal of 100 columns, and a pipe. The variables that matter are unset.
class TerminalTest : public testing::Test {
 protected:
  TerminalTest() {
    for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"}) ::unsetenv(name);
    ::setenv("TERM", "xterm", 1);
    int outer = -1, inner = -1;
    winsize size{.ws_row = 24, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::openpty(&outer, &inner, nullptr, nullptr, &size), 0);
    outer_.reset(outer);
    terminal_.reset(inner);
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    read_.reset(ends[0]);
    pipe_.reset(ends[1]);
  }

  Fd outer_, terminal_, read_, pipe_;
};

TEST_F(TerminalTest, OnlyATerminalHasColours) {
  EXPECT_TRUE(is_terminal(terminal_.get()));
  EXPECT_FALSE(is_terminal(pipe_.get()));
  EXPECT_TRUE(wants_colour(terminal_.get()));
  EXPECT_FALSE(wants_colour(pipe_.get()));
  for (const char* term : {"dumb", ""}) {
    ::setenv("TERM", term, 1);
    EXPECT_FALSE(wants_colour(terminal_.get())) << term;
  }
}

TEST_F(TerminalTest, VariablesForbidAndForceColours) {
  ::setenv("CLICOLOR_FORCE", "1", 1);
  EXPECT_TRUE(wants_colour(pipe_.get()));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(wants_colour(pipe_.get()));
  EXPECT_FALSE(wants_colour(terminal_.get()));
  ::setenv("NO_COLOR", "", 1);
  ::setenv("CLICOLOR_FORCE", "0", 1);
  EXPECT_FALSE(wants_colour(pipe_.get()));
  EXPECT_TRUE(wants_colour(terminal_.get()));
}

TEST_F(TerminalTest, TheWidthIsTheVariablesThenTheTerminals) {
  EXPECT_EQ(columns_of(terminal_.get()), 100u);
  EXPECT_EQ(columns_of(pipe_.get()), kUsualColumns);
  ::setenv("COLUMNS", "60", 1);
  EXPECT_EQ(columns_of(terminal_.get()), 60u);
  EXPECT_EQ(columns_of(pipe_.get()), 60u);
  for (const char* bad : {"", "0", "3", "-60", "60x", "99999999999999999999999"}) {
    ::setenv("COLUMNS", bad, 1);
    EXPECT_EQ(columns_of(terminal_.get()), 100u) << bad;
  }
}

TEST(PaintedTest, OnlyIfItIsWanted) {
  EXPECT_EQ(painted("x", Paint::kRed, false), "x");
  EXPECT_EQ(painted("x", Paint::kRed, true), "\x1b[1;31mx\x1b[0m");
  EXPECT_EQ(painted("x", Paint::kYellow, true), "\x1b[33mx\x1b[0m");
  EXPECT_EQ(painted("x", Paint::kGreen, true), "\x1b[32mx\x1b[0m");
  EXPECT_EQ(painted("x", Paint::kBold, true), "\x1b[1mx\x1b[0m");
}

}  // namespace
}  // namespace shoal
