#include "runtime/control/channel.h"

#include <cerrno>
#include <cstddef>
#include <gtest/gtest.h>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>

#include "tests/guard.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

struct Ends {
  Channel front;
  Channel worker;
};

Ends make_ends() {
  auto pair = Channel::make_pair();
  EXPECT_TRUE(pair.ok()) << pair.status().to_string();
  return {Channel(std::move(pair->first)), Channel(std::move(pair->second))};
}

TEST(Channel, FramesArriveWholeAndInOrder) {
  Ends ends = make_ends();
  for (const std::string& frame :
       {std::string("one"), std::string(), std::string(1000, 'x'), std::string("a\0b", 3)}) {
    ASSERT_TRUE(ends.front.send(frame, Deadline::after_ms(kGuardMs)).ok());
  }
  for (const std::string& frame :
       {std::string("one"), std::string(), std::string(1000, 'x'), std::string("a\0b", 3)}) {
    const auto got = ends.worker.receive(Deadline::after_ms(kGuardMs));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, frame);
  }
}

TEST(Channel, FramesLargerThanTheSocketBuffer) {
  Ends ends = make_ends();
  const std::string big(20 << 20, 'b');
  std::thread sender([&] { EXPECT_TRUE(ends.front.send(big, Deadline::after_ms(kGuardMs)).ok()); });
  const auto got = ends.worker.receive(Deadline::after_ms(kGuardMs));
  sender.join();
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_TRUE(*got == big);
}

TEST(Channel, ReceiveEndsAtItsDeadlineAndKeepsHalfAFrame) {
  Ends ends = make_ends();
  const uint32_t length = 4;
  ASSERT_EQ(::send(ends.front.fd(), &length, sizeof length, 0), 4);
  ASSERT_EQ(::send(ends.front.fd(), "ab", 2, 0), 2);
  EXPECT_EQ(ends.worker.receive(Deadline::after_ms(20)).status().code(), Code::kDeadlineExceeded);
  ASSERT_EQ(::send(ends.front.fd(), "cd", 2, 0), 2);
  const auto got = ends.worker.receive(Deadline::after_ms(kGuardMs), /*spin_us=*/50);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(*got, "abcd");
}

TEST(Channel, SendEndsAtItsDeadlineWhenNobodyReads) {
  Ends ends = make_ends();
  const Status status = ends.front.send(std::string(20 << 20, 'b'), Deadline::after_ms(50));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
}

TEST(Channel, AClosedEndIsUnavailable) {
  Ends ends = make_ends();
  { Channel gone = std::move(ends.worker); }
  EXPECT_EQ(ends.front.receive(Deadline::after_ms(kGuardMs)).status().code(), Code::kUnavailable);
  EXPECT_EQ(ends.front.send("x", Deadline::after_ms(kGuardMs)).code(), Code::kUnavailable);
}

TEST(Channel, AFrameOfAGibibyteIsRefused) {
  Ends ends = make_ends();
  const std::string_view too_long(static_cast<const char*>("x"),
                                  size_t{1} << 30);  // it is never dereferenced
  EXPECT_EQ(ends.front.send(too_long, Deadline::after_ms(kGuardMs)).code(), Code::kInvalidArgument);
}

TEST(Channel, BytesThatClaimToBeAFrameOfAGibibyteAreNotCollected) {
  for (const uint32_t length : {uint32_t{1} << 30, UINT32_MAX}) {
    Ends ends = make_ends();
    ASSERT_EQ(::send(ends.front.fd(), &length, sizeof length, 0), 4);
    EXPECT_EQ(ends.worker.receive(Deadline::after_ms(kGuardMs)).status().code(), Code::kInternal);
  }
}

TEST(Channel, AFailedPairNamesTheLimitThatIsReached) {
  const std::string full = in_child([] {
    const struct rlimit limit { 3, 3 };
    ::setrlimit(RLIMIT_NOFILE, &limit);
    return Channel::make_pair().status().to_string();
  });
  EXPECT_NE(full.find("; a process may have only 3 open files (ulimit -n): Too many open files"),
            std::string::npos)
      << full;
  const std::string denied = in_child([]() -> std::string {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(program), program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      return "skip: no seccomp";
    return Channel::make_pair().status().to_string();
  });
  if (denied.starts_with("skip")) GTEST_SKIP() << denied;
  EXPECT_NE(denied.find("Operation not permitted"), std::string::npos) << denied;
  EXPECT_EQ(denied.find("ulimit"), std::string::npos) << denied;
}

}  // namespace
}  // namespace shoal
