// Which connection is closed because it brings what never becomes a request. The test moves the
// clock.
#include <algorithm>

#include "server/intake/intake.h"
#include "tests/moved_clock.h"
#include "tests/server/grpc/connections_fixture.h"

namespace shoal {
namespace {

class EndlessTest : public ConnectionsTest {
 protected:
  void SetUp() override {
    ConnectionsTest::SetUp();
    start(64);
  }
  /// The client sends, and the server reads it, as gRPC would.
  static void bring(const Pair& pair, size_t bytes) { move(pair.client, pair.server, bytes); }
  /// The server sends, and the client reads and acknowledges it.
  static void answer(const Pair& pair, size_t bytes) { move(pair.server, pair.client, bytes); }
  /// Advances the clock by `seconds` and lets the connections be looked at. Returns whether this
  /// one is closed then.
  bool closed_after(double seconds, const Pair& pair) {
    MovedClock::advance(seconds);
    connections_->close_endless();
    return pair.is_shut();
  }

  MovedClock clock_;

 private:
  static void move(const Fd& from, const Fd& to, size_t bytes) {
    static const std::vector<char> kPiece(1 << 16, 'x');
    std::vector<char> into(kPiece.size());
    while (bytes > 0) {
      const size_t part = std::min(bytes, kPiece.size());
      ASSERT_EQ(::send(from.get(), kPiece.data(), part, MSG_NOSIGNAL), static_cast<ssize_t>(part));
      ASSERT_EQ(::recv(to.get(), into.data(), part, MSG_WAITALL), static_cast<ssize_t>(part));
      bytes -= part;
    }
  }
};

constexpr size_t kMiB = 1 << 20;

TEST_F(EndlessTest, HeadersWithoutEndCloseTheConnection) {
  Pair& one = connect();
  bring(one, kMiB - 4096);
  EXPECT_FALSE(closed_after(0.05, one));
  bring(one, 8192);
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, ACallOfAConnectionThatWasClosedIsKnown) {
  Pair& one = connect();
  Pair& other = connect();
  bring(one, 2 * kMiB);
  EXPECT_FALSE(connections_->has_closed(one.peer));
  ASSERT_TRUE(closed_after(0.05, one));
  EXPECT_TRUE(connections_->has_closed(one.peer));
  EXPECT_FALSE(connections_->has_closed(other.peer));
  one.client.reset();
  one.server.reset();
  EXPECT_TRUE(connections_->has_closed(one.peer)) << "gRPC may close it before the call begins";
  EXPECT_FALSE(connections_->has_closed(connect_from(one.peer, "127.0.0.2").peer));
}

TEST_F(EndlessTest, AlsoOnceADescriptorIsFreeAgain) {
#ifdef SHOAL_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects through descriptors of its own";
#endif
  Pair& one = connect();
  bring(one, 2 * kMiB);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool closed = closed_after(0.05, one);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_FALSE(closed);
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, ItIsLookedAtSoonerWhileSuchBytesCome) {
  using std::chrono::milliseconds;
  Pair& one = connect();
  EXPECT_GE(connections_->close_endless(), milliseconds(50));
  bool sooner = false;
  for (int i = 0; i < 12 && !sooner; ++i) {  // a look that is held up counts as a long one
    bring(one, kMiB / 16);
    sooner = connections_->close_endless() < milliseconds(50);
  }
  EXPECT_TRUE(sooner);
  EXPECT_GE(connections_->close_endless(), milliseconds(50)) << "nothing more came";
  connections_->call_began(one.peer);
  connections_->close_endless();
  bring(one, 8 * kMiB);
  EXPECT_GE(connections_->close_endless(), milliseconds(50)) << "this may be a message";
}

TEST_F(EndlessTest, LooksAreNeverFarApart) {
  using std::chrono::milliseconds;
  start(64, Intake::Options{}.budget_bytes, [] {  // as on a machine with many connections
    const Clock::time_point end = Clock::now() + milliseconds(20);
    while (Clock::now() < end) continue;
    return size_t{0};
  });
  Pair& one = connect();
  connections_->call_began(one.peer);
  connections_->close_endless();
  bring(one, 16 * kMiB);  // from here on it looks at the front's memory
  EXPECT_EQ(connections_->close_endless(), milliseconds(200));
}

TEST_F(EndlessTest, ConnectionsThatAreGoneAreForgotten) {
  Pair& stays = connect();
  connections_->call_began(stays.peer);
  for (int i = 0; i < 200; ++i) {
    connect();
    pairs_.pop_back();
    connections_->close_endless();
    ASSERT_LE(connections_->known(), 65u) << i;
  }
  EXPECT_EQ(connections_->describe(), "1 call is open on 1 connection");
}

TEST_F(EndlessTest, AlsoBesideACallThatHasBegun) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  EXPECT_FALSE(closed_after(0.05, one));
  bring(one, 16 * kMiB);
  EXPECT_FALSE(closed_after(0.05, one)) << "a message of it may come";
  bring(one, 2 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, AlsoBesideACallWhoseRequestIsWhole) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  bring(one, 10 * kMiB);
  request_came(one);
  EXPECT_FALSE(closed_after(0.05, one));
  bring(one, kMiB * 9 / 10);
  EXPECT_FALSE(closed_after(0.05, one));
  bring(one, kMiB);
  EXPECT_TRUE(closed_after(0.05, one)) << "nothing more of it may come";
}

TEST_F(EndlessTest, AndAfterItsEnd) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  request_came(one);
  ASSERT_FALSE(closed_after(0.05, one));
  connections_->call_ended(one.peer, Brought::kAll);
  bring(one, 2 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, ButACallOfManyMessagesMayBringAnotherOne) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  connections_->message_came(one.peer, Brought::kNothing, Brought::kOneOfMany);
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(closed_after(0.05, one));
    bring(one, 16 * kMiB);
    EXPECT_FALSE(closed_after(0.05, one));
    connections_->message_came(one.peer, Brought::kOneOfMany, Brought::kOneOfMany);
  }
  ASSERT_FALSE(closed_after(0.05, one));
  bring(one, 18 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, AndIfAnotherAddressHasTheSamePort) {
  Pair& one = connect();
  const std::string elsewhere = "ipv4:127.0.0.9" + one.peer.substr(one.peer.rfind(':'));
  bring(one, kMiB / 2);
  EXPECT_FALSE(closed_after(0.05, one));
  connections_->call_began(elsewhere);
  bring(one, kMiB);
  EXPECT_TRUE(closed_after(0.05, one)) << "a call of somebody else explains nothing";
}

TEST_F(EndlessTest, AllTogetherHaveABound) {
  std::vector<Pair*> all;
  for (int i = 0; i < 40; ++i) {
    all.push_back(&connect());
    bring(*all.back(), kMiB * 9 / 10 - static_cast<size_t>(i));
  }
  connections_->close_endless();
  EXPECT_TRUE(all[0]->is_shut()) << "the fullest";
  EXPECT_FALSE(all[39]->is_shut());
  const auto shut = std::count_if(all.begin(), all.end(), [](Pair* one) { return one->is_shut(); });
  EXPECT_EQ(shut, 5) << "35 of 0.9 MiB are below 32 MiB";
}

TEST_F(EndlessTest, WhoIsInTheMiddleOfAMessageIsNotClosedForOthers) {
  Pair& uploads = connect();
  connections_->call_began(uploads.peer);
  ASSERT_FALSE(closed_after(0.05, uploads));
  bring(uploads, 10 * kMiB);
  std::vector<Pair*> others;
  for (int i = 0; i < 40; ++i) bring(*others.emplace_back(&connect()), kMiB * 9 / 10);
  EXPECT_FALSE(closed_after(0.05, uploads));
  const auto shut =
      std::count_if(others.begin(), others.end(), [](Pair* one) { return one->is_shut(); });
  EXPECT_EQ(shut, 5);
}

TEST_F(EndlessTest, CallsThatAreGivenUpDoNotHideMoreMemoryThanTheServerMayHave) {
  Pair& one = connect();
  for (int i = 0; i < 100; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  const size_t before = memory_;
  for (int i = 0; i < 100; ++i) {
    bring(one, 6 * kMiB);
    memory_ += 30 * kMiB;                                   // small headers
    connections_->call_ended(one.peer, Brought::kNothing);  // its deadline has passed
    if (closed_after(0.05, one)) break;
  }
  EXPECT_TRUE(one.is_shut());
  EXPECT_LE(memory_ - before, 1054 * kMiB);
}

TEST_F(EndlessTest, NorDoHeadersThatDripOnManyConnections) {
  std::vector<Pair*> all;
  for (int i = 0; i < 100; ++i) all.push_back(&connect());
  const auto any_shut = [&] {
    return std::any_of(all.begin(), all.end(), [](Pair* one) { return one->is_shut(); });
  };
  const size_t before = memory_;
  while (!any_shut() && memory_ - before < 2048 * kMiB) {
    for (Pair* one : all) bring(*one, 16 << 10);
    memory_ += all.size() * 20 * (16 << 10);
    closed_after(16, *all[0]);
  }
  EXPECT_TRUE(any_shut());
  EXPECT_LE(memory_ - before, 1056 * kMiB);
}

TEST_F(EndlessTest, NorDoHeadersBesideAnswers) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  request_came(one);
  ASSERT_FALSE(closed_after(0.05, one));
  const size_t before = memory_;
  while (!one.is_shut() && memory_ - before < 2048 * kMiB) {
    for (int i = 0; i < 16; ++i) {
      answer(one, kMiB / 4);
      bring(one, kMiB / 16);
    }
    memory_ += 20 * kMiB;
    closed_after(0.05, one);
  }
  EXPECT_TRUE(one.is_shut());
  EXPECT_LE(memory_ - before, 1045 * kMiB);
}

TEST_F(EndlessTest, WhoUploadsIsNotClosedForMemoryThatRequestsMayTake) {
  start(64, 4096 * kMiB);
  Pair& one = connect();
  for (int i = 0; i < 64; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  bring(one, 20 * kMiB);
  memory_ += (512 + 2 * 4096) * kMiB;
  EXPECT_FALSE(closed_after(0.05, one));
  memory_ += kMiB;
  EXPECT_TRUE(closed_after(0.05, one));
}

TEST_F(EndlessTest, TheNextHeaviestIsClosedOnlyOnceTheOneBeforeIsGone) {
  Pair& one = connect();
  Pair& other = connect();
  for (int i = 0; i < 10; ++i) connections_->call_began(one.peer);
  for (int i = 0; i < 10; ++i) connections_->call_began(other.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  bring(one, 150 * kMiB);
  bring(other, 140 * kMiB);
  EXPECT_FALSE(closed_after(0.05, one)) << "these may be messages";
  memory_ += 1200 * kMiB;
  Pair& small = connect();
  bring(small, 2 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one)) << "whatever else is closed";
  EXPECT_TRUE(small.is_shut());
  EXPECT_FALSE(closed_after(0.05, other)) << "the memory of the one before is still there";
  one.server.reset();
  EXPECT_TRUE(closed_after(0.05, other));
}

/// The server may be reached at two addresses, and then the peer does not tell connections apart.
TEST_F(EndlessTest, ACallOnAConnectionWithTheSamePeerExplainsNothing) {
  Pair& one = connect();
  Pair& other = connect_from(one.peer, "127.0.0.2");
  ASSERT_EQ(other.peer, one.peer);
  for (int i = 0; i < 5; ++i) {
    bring(one, kMiB / 4);
    connections_->call_began(other.peer);
    request_came(other);
    connections_->call_ended(other.peer, Brought::kAll);
    if (closed_after(0.05, one)) break;
  }
  EXPECT_TRUE(one.is_shut());
}

TEST_F(EndlessTest, BytesAreThoseOfTheOpenConnectionIfAPortIsUsedAgain) {
  const std::string peer = connect().peer;
  pairs_.back()->client.reset();
  pairs_.back()->server.reset();
  Pair& again = connect_from(peer, "127.0.0.2");
  ASSERT_EQ(again.peer, peer);
  bring(again, 5000);
  EXPECT_EQ(connections_->received(peer), 5000u);
}

TEST_F(EndlessTest, ManySmallCallsAreNoAttack) {
  Pair& one = connect();
  for (int i = 0; i < 20'000; ++i) {
    connections_->call_began(one.peer);
    bring(one, 200);
    request_came(one);
    connections_->call_ended(one.peer, Brought::kAll);
    ASSERT_FALSE(i % 100 == 0 && closed_after(0.05, one)) << i;
  }
}

TEST_F(EndlessTest, ALargeMessageMayComeSlowly) {
  Pair& one = connect();
  for (int message = 0; message < 2; ++message) {
    connections_->call_began(one.peer);
    for (size_t mib = 0; mib < kMaxRequestBytes / kMiB; ++mib) {
      bring(one, kMiB + 9 * kMiB / 16384);  // with the heads of its frames
      ASSERT_FALSE(closed_after(1, one)) << mib;
    }
    request_came(one);
    connections_->call_ended(one.peer, Brought::kAll);
    ASSERT_FALSE(closed_after(0.05, one));
  }
  bring(one, 20 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one)) << "no call is there any more";
}

TEST_F(EndlessTest, ManyLargeMessagesMayComeAtOnce) {
  Pair& one = connect();
  for (int i = 0; i < 64; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  for (int i = 0; i < 64; ++i) {
    bring(one, 15 * kMiB);
    memory_ += i < 36 ? 15 * kMiB : 0;  // beyond that gRPC itself ends calls
    ASSERT_FALSE(closed_after(0.05, one)) << i;
  }
}

TEST_F(EndlessTest, ManyLargeMessagesAtOnceMayWait) {
  Pair& one = connect();
  for (int i = 0; i < 64; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  bring(one, 64 * (size_t{64} << 10));  // the window of each
  ASSERT_FALSE(closed_after(0.05, one));
  for (int i = 0; i < 64; ++i)
    connections_->call_ended(one.peer, Brought::kNothing);  // there was no room for them
  EXPECT_FALSE(closed_after(0.05, one));
}

TEST_F(EndlessTest, WhatAcknowledgesAnAnswerIsExplained) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  for (int i = 0; i < 64; ++i) {
    answer(one, kMiB / 16);
    bring(one, kMiB / 70);  // two window updates for each small frame
    ASSERT_FALSE(closed_after(0.05, one)) << i;
  }
}

}  // namespace
}  // namespace shoal
