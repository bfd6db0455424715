// A part of a shutdown that hangs ends the process with the code that it was to have; one that is
// over in time does not. The hanging part is a sleep here; tests/e2e/shutdown_test.py has gRPC's.
#include "server/cli/shutdown_watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace shoal {
namespace {

void hang_in_second_part() {
  ShutdownWatchdog watchdog([] {});
  watchdog.expect("the first part", 60'000, ExitCode::kOk);
  watchdog.expect("the second part", 20, ExitCode::kWorkerDied, [] { return "2 calls"; });
  ::sleep(60);
}

TEST(ShutdownWatchdogDeathTest, EndsAProcessWhoseShutdownHangs) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(hang_in_second_part(), testing::ExitedWithCode(75),
              "the second part has taken more than 20 ms \\(2 calls\\)");
}

TEST(ShutdownWatchdog, LetsAShutdownEndInTime) {
  ShutdownWatchdog unused([] {});
  ShutdownWatchdog watchdog([] {});
  watchdog.expect("a part", 60'000, ExitCode::kInternal);
}

}  // namespace
}  // namespace shoal
