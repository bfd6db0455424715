#include "runtime/control/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <thread>

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
    ASSERT_TRUE(ends.front.send(frame, Deadline::after_s(5)).ok());
  }
  for (const std::string& frame :
       {std::string("one"), std::string(), std::string(1000, 'x'), std::string("a\0b", 3)}) {
    const auto got = ends.worker.receive(Deadline::after_s(5));
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(*got, frame);
  }
}

TEST(Channel, FramesLargerThanTheSocketBuffer) {
  Ends ends = make_ends();
  const std::string big(20 << 20, 'b');
  std::thread sender([&] { EXPECT_TRUE(ends.front.send(big, Deadline::after_s(20)).ok()); });
  const auto got = ends.worker.receive(Deadline::after_s(20));
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
  const auto got = ends.worker.receive(Deadline::after_s(5), /*spin_us=*/50);
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
  EXPECT_EQ(ends.front.receive(Deadline::after_s(5)).status().code(), Code::kUnavailable);
  EXPECT_EQ(ends.front.send("x", Deadline::after_s(5)).code(), Code::kUnavailable);
}

TEST(Channel, AFrameOfAGibibyteIsRefused) {
  Ends ends = make_ends();
  const std::string_view too_long(static_cast<const char*>("x"),
                                  size_t{1} << 30);  // it is never dereferenced
  EXPECT_EQ(ends.front.send(too_long, Deadline::after_s(1)).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal
