// Which connection is closed when descriptors become short, and at the end.
#include "server/grpc/connections/connections.h"

#include <fcntl.h>
#include <unistd.h>

#include "server/grpc/grpc_version.h"
#include "tests/server/grpc/connections_fixture.h"

namespace shoal {
namespace {

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
  request_came(*all[1]);
  connections_->call_ended(all[1]->peer, Brought::kAll);
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
  request_came(*all[0]);
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
    request_came(*all.back());
    EXPECT_FALSE(connections_->over_limit(all.back()->peer));
  }
  std::vector<Pair*> beyond;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree) << i;
    beyond.push_back(&connect());
    EXPECT_TRUE(connections_->over_limit(beyond.back()->peer));
    connections_->call_began(beyond.back()->peer);
    request_came(*beyond.back());
  }
  EXPECT_EQ(connections_->make_room(), Room::kNone) << "each of them has a call that is young";
  connections_->call_ended(beyond[2]->peer, Brought::kAll);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(beyond[2]->is_shut());
  for (const Pair* pair : all) EXPECT_FALSE(pair->is_shut());
  // When a call ends, its connection makes room for one that is as good as any.
  connections_->call_ended(all[3]->peer, Brought::kAll);
  beyond[2]->server.reset();
  beyond[2]->client.reset();
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(all[3]->is_shut());
}

TEST_F(ConnectionsTest, TakesAFewEvenIfNoDescriptorIsLeft) {
  start(0);
  EXPECT_EQ(fill().size(), 4u);
}

TEST_F(ConnectionsTest, AtTheEndAllAreClosedAndNothingElse) {
  start(6);
  Pair& with_call = connect();
  Pair& idle = connect();
  Pair& gone = connect();
  connections_->call_began(with_call.peer);
  request_came(with_call);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd other(ends[0]), end_of_other(ends[1]);
  ASSERT_EQ(::dup3(other.get(), gone.server.get(), O_CLOEXEC), gone.server.get());
  connections_->close_all();
  EXPECT_TRUE(with_call.is_shut());
  EXPECT_TRUE(idle.is_shut());
  EXPECT_FALSE(gone.is_shut()) << "gRPC has closed it, and its number means another socket";
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
