// Real children: some end, some do not, and the kernel does not keep the exit status of some.
#include "runtime/supervisor/process_end.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/guard.h"
#include "tests/in_child.h"
#include "tests/runtime/supervisor/held_process.h"

namespace shoal {
namespace {

pid_t child_that_waits() {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  for (;;) ::pause();
}

Fd pidfd_of(pid_t pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

std::string end_of(const std::optional<ProcessEnd>& end) {
  return end ? describe_exit(end->code, end->status) : "none";
}

TEST(ProcessEnd, IsTakenWithAndWithoutAPidfd) {
  for (const bool with_pidfd : {true, false}) {
    const pid_t leaves = ::fork();
    if (leaves == 0) ::_exit(7);
    EXPECT_EQ(end_of(await_end(leaves, with_pidfd ? pidfd_of(leaves) : Fd(),
                               Deadline::after_ms(kGuardMs))),
              "exited with code 7");
    const pid_t stays = child_that_waits();
    const Fd pidfd = with_pidfd ? pidfd_of(stays) : Fd();
    EXPECT_FALSE(take_end(stays));
    EXPECT_FALSE(await_end(stays, pidfd, Deadline::after_ms(30)));
    ::kill(stays, SIGKILL);
    EXPECT_EQ(end_of(await_end(stays, pidfd, Deadline::after_ms(kGuardMs))),
              "was killed by signal 9 (Killed)");
  }
}

TEST(ProcessEnd, OfAProcessThatNoKillEndsIsNotWaitedForForEver) {
  const pid_t child = child_that_waits();
  const Fd pidfd = pidfd_of(child);
  HeldProcess held(child);
  if (!held.holds()) GTEST_SKIP() << "this kernel lets nobody trace a sibling here";
  ::kill(child, SIGKILL);
  EXPECT_FALSE(await_end(child, pidfd, Deadline::after_ms(50)));
  EXPECT_FALSE(uses_processor(child));
  held.release();
  EXPECT_EQ(end_of(await_end(child, pidfd, Deadline::after_ms(kGuardMs))),
            "was killed by signal 9 (Killed)");
}

TEST(ProcessEnd, IsNotKnownWhereSigchldIsIgnored) {
  EXPECT_EQ(in_child([]() -> std::string {
              ::signal(SIGCHLD, SIG_IGN);
              const pid_t child = child_that_waits();
              if (take_end(child)) return "an end of a living child";
              ::kill(child, SIGKILL);
              return end_of(await_end(child, pidfd_of(child), Deadline::after_ms(kGuardMs)));
            }),
            "has ended, and how was not kept (SIGCHLD is ignored)");
}

TEST(ProcessEnd, ABusyProcessUsesAProcessor) {
  const pid_t busy = ::fork();
  if (busy == 0) {
    for (;;) (void)::getppid();
  }
  EXPECT_TRUE(uses_processor(busy));
  ::kill(busy, SIGKILL);
  EXPECT_TRUE(await_end(busy, Fd(), Deadline::after_ms(kGuardMs)));
  EXPECT_FALSE(uses_processor(busy));
}

}  // namespace
}  // namespace shoal
