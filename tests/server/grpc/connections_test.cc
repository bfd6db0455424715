// Which connection is closed when descriptors become short, or because it brings what never becomes
// a request, on real TCP connections. The test stands in for gRPC, which owns the descriptors, and
// moves the clock.
#include "server/grpc/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "server/grpc/grpc_version.h"
#include "server/serving/intake.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

using Room = Connections::Room;

sockaddr_in loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Both ends of a connection, and its client's name as gRPC writes it.
struct Pair {
  Fd client, server;
  std::string peer;
  bool is_shut() const {
    char byte;
    return ::recv(server.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
  }
};

class ConnectionsTest : public testing::Test {
 protected:
  void SetUp() override {
    sockaddr_in address = loopback();
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 64), 0);
  }
  /// Leaves room for `pairs` connections, of which the test holds both ends.
  void start(int pairs) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1024;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    connections_.emplace(1024 - open_descriptors(1024) - 2 * pairs);
  }
  Pair& connect() { return connect(listener_, 0); }
  /// From the port of this peer to another address of the server.
  Pair& connect_from(const std::string& peer, const char* host) {
    const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback();
    EXPECT_EQ(::inet_pton(AF_INET, host, &address.sin_addr), 1);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    return connect(listener, static_cast<uint16_t>(std::stoi(peer.substr(peer.rfind(':') + 1))));
  }
  /// Connects as long as there is room without closing anything.
  std::vector<Pair*> fill() {
    std::vector<Pair*> all;
    while (connections_->make_room() == Room::kFree && all.size() < 100) all.push_back(&connect());
    return all;
  }

  Pair& connect(const Fd& listener, uint16_t from_port) {
    sockaddr_in address{}, from = loopback();
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    auto pair = std::make_unique<Pair>();
    pair->client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int again = 1;  // the port may be used again
    ::setsockopt(pair->client.get(), SOL_SOCKET, SO_REUSEADDR, &again, sizeof again);
    from.sin_port = htons(from_port);
    EXPECT_EQ(::bind(pair->client.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    EXPECT_EQ(::connect(pair->client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    sockaddr_in peer{};
    size = sizeof peer;
    pair->server.reset(::accept(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size));
    pair->peer = cat("ipv4:127.0.0.1:", ntohs(peer.sin_port));
    connections_->add(pair->server.get());
    connections_->count_again();  // the test's own end is no connection of the server
    return *pairs_.emplace_back(std::move(pair));
  }

  const Fd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::optional<Connections> connections_;
  std::vector<std::unique_ptr<Pair>> pairs_;
};

TEST_F(ConnectionsTest, ClosesTheOneThatHasBeenIdleForLongest) {
  start(6);
  const std::vector<Pair*> all = fill();
  ASSERT_EQ(all.size(), 6u);
  EXPECT_TRUE(all[0]->is_shut()) << "the oldest";
  EXPECT_EQ(connections_->make_room(), Room::kSoon) << "it is being closed, and no other one";
  all[0]->server.reset();
  all[0]->client.reset();
  EXPECT_EQ(connections_->make_room(), Room::kFree);
  connect();
  // A call makes its connection the one that was used last.
  connections_->call_began(all[1]->peer);
  connections_->call_ended(all[1]->peer, true);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_FALSE(all[1]->is_shut());
  EXPECT_TRUE(all[2]->is_shut());
}

TEST_F(ConnectionsTest, ACallWithoutAMessageKeepsNoConnection) {
  start(6);
  const std::vector<Pair*> all = fill();
  ASSERT_TRUE(all[0]->is_shut());
  connections_->call_began(all[1]->peer);
  all[0]->server.reset();
  all[0]->client.reset();
  connect();
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(all[1]->is_shut());
}

TEST_F(ConnectionsTest, LetsACallLiveAndARequestArrive) {
  start(6);
  std::vector<Pair*> all;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree);
    all.push_back(&connect());
  }
  connections_->call_began(all[0]->peer);
  connections_->message_came(all[0]->peer, true);
  ASSERT_EQ(::send(all[1]->client.get(), "x", 1, 0), 1);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_FALSE(all[0]->is_shut()) << "it has a call";
  char byte;
  EXPECT_EQ(::recv(all[1]->server.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK), 1) << "it sends";
  EXPECT_TRUE(all[2]->is_shut());
}

TEST_F(ConnectionsTest, TakesAFewForProbesBesideLiveCalls) {
  start(6);
  std::vector<Pair*> all;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree);
    all.push_back(&connect());
    connections_->call_began(all.back()->peer);
    connections_->message_came(all.back()->peer, true);
    EXPECT_FALSE(connections_->over_limit(all.back()->peer));
  }
  std::vector<Pair*> beyond;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree) << i;
    beyond.push_back(&connect());
    EXPECT_TRUE(connections_->over_limit(beyond.back()->peer));
    connections_->call_began(beyond.back()->peer);
    connections_->message_came(beyond.back()->peer, true);
  }
  EXPECT_EQ(connections_->make_room(), Room::kNone) << "each of them has a call that is young";
  connections_->call_ended(beyond[2]->peer, true);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(beyond[2]->is_shut());
  for (const Pair* pair : all) EXPECT_FALSE(pair->is_shut());
  // When a call ends, its connection makes room for one that is as good as any.
  connections_->call_ended(all[3]->peer, true);
  beyond[2]->server.reset();
  beyond[2]->client.reset();
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(all[3]->is_shut());
}

TEST_F(ConnectionsTest, TakesAFewEvenIfNoDescriptorIsLeft) {
  start(0);
  EXPECT_EQ(fill().size(), 4u);
}

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
  /// Whether the connection is closed when that is looked at after so many seconds.
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

TEST_F(EndlessTest, AlsoBesideACallThatHasBegun) {
  Pair& one = connect();
  connections_->call_began(one.peer);
  EXPECT_FALSE(closed_after(0.05, one));
  bring(one, 16 * kMiB);
  EXPECT_FALSE(closed_after(0.05, one)) << "a message of it may come";
  bring(one, 2 * kMiB);
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

TEST_F(EndlessTest, CallsThatAreGivenUpDoNotHideMoreThanAllMayBring) {
  Pair& one = connect();
  for (int i = 0; i < 100; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  for (int i = 0; i < 100; ++i) {
    bring(one, 6 * kMiB);
    connections_->call_ended(one.peer, false);  // its deadline has passed
    if (closed_after(0.05, one)) break;
  }
  EXPECT_TRUE(one.is_shut());
}

/// The server may be reached at two addresses, and then the peer does not tell connections apart.
TEST_F(EndlessTest, ACallOnAConnectionWithTheSamePeerExplainsNothing) {
  Pair& one = connect();
  Pair& other = connect_from(one.peer, "127.0.0.2");
  ASSERT_EQ(other.peer, one.peer);
  for (int i = 0; i < 5; ++i) {
    bring(one, kMiB / 4);
    connections_->call_began(other.peer);
    connections_->call_ended(other.peer, true);
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
    connections_->call_ended(one.peer, true);
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
    connections_->message_came(one.peer, true);
    connections_->call_ended(one.peer, true);
    ASSERT_FALSE(closed_after(0.05, one));
  }
  bring(one, 20 * kMiB);
  EXPECT_TRUE(closed_after(0.05, one)) << "no call is there any more";
}

TEST_F(EndlessTest, ManyLargeMessagesAtOnceMayWait) {
  Pair& one = connect();
  for (int i = 0; i < 64; ++i) connections_->call_began(one.peer);
  ASSERT_FALSE(closed_after(0.05, one));
  bring(one, 64 * (size_t{64} << 10));  // the window of each
  ASSERT_FALSE(closed_after(0.05, one));
  for (int i = 0; i < 64; ++i)
    connections_->call_ended(one.peer, true);  // there was no room for them
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

TEST(LeakyBucketTest, TenPingsASecondForAWeekNeverFillIt) {
  LeakyBucket bucket;
  RunningClock::time_point now{};
  for (int second = 0; second < 7 * 24 * 3600; ++second) {
    bucket.fill(170, now += std::chrono::seconds(1));
    ASSERT_LT(bucket.bytes(), 1024.0);
  }
}

TEST(GrpcVersionTest, KnowsTheMendedOnes) {
  for (const char* mended : {"1.53.2", "1.54.3", "1.55.2", "1.56.2", "1.57.0", "1.60.0-dev", "2.0"})
    EXPECT_TRUE(bounds_headers(mended)) << mended;
  for (const char* open : {"1.51.1", "1.52.9", "1.53.1", "1.54.2", "1.55.1", "1.56.0", "1.9", ""})
    EXPECT_FALSE(bounds_headers(open)) << open;
}

TEST(PeerTest, IsReadAsGrpcWritesIt) {
  const std::optional<Peer> v4 = parse_peer("ipv4:127.0.0.1:40000");
  ASSERT_TRUE(v4);
  EXPECT_EQ(v4->port, 40000);
  EXPECT_EQ(v4, parse_peer("ipv6:%5B::ffff:127.0.0.1%5D:40000"));
  EXPECT_NE(v4, parse_peer("ipv4:127.0.0.2:40000"));
  EXPECT_NE(v4, parse_peer("ipv4:127.0.0.1:40001"));
  EXPECT_EQ(parse_peer("ipv6:%5Bfe80::1%25eth0%5D:7"), parse_peer("ipv6:[fe80::1]:7"));
  for (const char* wrong : {"", "unix:/tmp/x", "ipv4:127.0.0.1", "ipv4:127.0.0.1:", "ipv4:x:1",
                            "ipv4:127.0.0.1:99999", "inproc", "fd:7"})
    EXPECT_FALSE(parse_peer(wrong)) << wrong;
  EXPECT_EQ(address_of("ipv4:127.0.0.1:40000"), "ipv4:127.0.0.1");
}

}  // namespace
}  // namespace shoal
