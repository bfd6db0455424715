// Which connection is closed when descriptors become short, on real TCP connections. The test
// stands in for gRPC, which owns the descriptors.
#include "server/grpc/connections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"

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
  Pair& connect() {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    auto pair = std::make_unique<Pair>();
    pair->client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(pair->client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    sockaddr_in peer{};
    size = sizeof peer;
    pair->server.reset(::accept(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &size));
    pair->peer = cat("ipv4:127.0.0.1:", ntohs(peer.sin_port));
    connections_->add(pair->server.get());
    connections_->count_again();  // the test's own end is no connection of the server
    return *pairs_.emplace_back(std::move(pair));
  }
  /// Connects as long as there is room without closing anything.
  std::vector<Pair*> fill() {
    std::vector<Pair*> all;
    while (connections_->make_room() == Room::kFree && all.size() < 100) all.push_back(&connect());
    return all;
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
  connections_->call_ended(all[1]->peer);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_FALSE(all[1]->is_shut());
  EXPECT_TRUE(all[2]->is_shut());
}

TEST_F(ConnectionsTest, LetsACallLiveAndARequestArrive) {
  start(6);
  std::vector<Pair*> all;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree);
    all.push_back(&connect());
  }
  connections_->call_began(all[0]->peer);
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
    EXPECT_FALSE(connections_->over_limit(all.back()->peer));
  }
  std::vector<Pair*> beyond;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(connections_->make_room(), Room::kFree) << i;
    beyond.push_back(&connect());
    EXPECT_TRUE(connections_->over_limit(beyond.back()->peer));
    connections_->call_began(beyond.back()->peer);
  }
  EXPECT_EQ(connections_->make_room(), Room::kNone) << "each of them has a call that is young";
  connections_->call_ended(beyond[2]->peer);
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(beyond[2]->is_shut());
  for (const Pair* pair : all) EXPECT_FALSE(pair->is_shut());
  // When a call ends, its connection makes room for one that is as good as any.
  connections_->call_ended(all[3]->peer);
  beyond[2]->server.reset();
  beyond[2]->client.reset();
  EXPECT_EQ(connections_->make_room(), Room::kSoon);
  EXPECT_TRUE(all[3]->is_shut());
}

TEST_F(ConnectionsTest, TakesAFewEvenIfNoDescriptorIsLeft) {
  start(0);
  EXPECT_EQ(fill().size(), 4u);
}

}  // namespace
}  // namespace shoal
