#include "runtime/comm/tcp/tcp_mesh.h"

#include <arpa/inet.h>
#include <chrono>
#include <functional>
#include <future>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "runtime/comm/tcp/tcp_communicator.h"
#include "tests/guard.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

constexpr uint64_t kKey = 0x1234;

/// A connection from outside the group, which has sent `text`.
Fd stranger(int port, const std::string& text) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
  return fd;
}

/// Opens every rank in a thread, then makes all of them meet at a barrier. Returns their results by
/// rank.
std::vector<Status> open_all(
    TcpListeners listeners, const std::vector<uint64_t>& keys,
    const std::function<void()>& when_one_ends = [] {}) {
  const int world_size = static_cast<int>(keys.size());
  std::vector<Status> ends(keys.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator =
          open_tcp_communicator({rank, world_size}, std::move(listeners.listeners[rank]),
                                listeners.ports, kGuardMs, keys[rank]);
      ends[rank] = communicator.ok() ? (*communicator)->barrier() : communicator.status();
      when_one_ends();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(TcpMeshTest, ListenersAreOnLoopbackAndDistinct) {
  auto made = make_tcp_listeners(3);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ASSERT_EQ(made->listeners.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    ASSERT_EQ(
        ::getsockname(made->listeners[i].get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    EXPECT_EQ(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    EXPECT_EQ(ntohs(address.sin_port), made->ports[i]);
    EXPECT_NE(made->ports[i], made->ports[(i + 1) % 3]);
  }
}

TEST(TcpMeshTest, StrangersAreIgnored) {
  auto made = make_tcp_listeners(3);
  ASSERT_TRUE(made.ok());
  std::vector<Fd> strangers;
  for (const int port : made->ports) {
    strangers.push_back(stranger(port, ""));  // sends nothing and stays
    strangers.push_back(
        stranger(port, "GET / HTTP/1.1\r\nHost: shoal\r\n"));     // sends too little and stays
    strangers.push_back(stranger(port, std::string(5000, 'x')));  // sends too much
    stranger(port, "gone");
  }
  for (int i = 0; i < 90; ++i)
    strangers.push_back(stranger(made->ports[0], "crowd"));  // more than may wait
  for (const Status& end : open_all(std::move(*made), {kKey, kKey, kKey})) {
    EXPECT_TRUE(end.ok()) << end.to_string();
  }
}

TEST(TcpMeshTest, AnotherGroupsRankIsRefused) {
  auto made = make_tcp_listeners(2);
  ASSERT_TRUE(made.ok());
  const MovedClock clock;  // rank 0 waits in vain, and its time passes once rank 1 has ended
  const std::vector<Status> ends =
      open_all(std::move(*made), {kKey, kKey + 1}, [] { MovedClock::advance(2 * kGuardSeconds); });
  EXPECT_EQ(ends[0].code(), Code::kDeadlineExceeded);
  EXPECT_NE(ends[0].to_string().find("rank 1"), std::string::npos) << ends[0].to_string();
  EXPECT_EQ(ends[1].code(), Code::kUnavailable);
  EXPECT_NE(ends[1].to_string().find("rank 0"), std::string::npos) << ends[1].to_string();
}

TEST(TcpMeshTest, MissingRanksAreNamedAtTheDeadline) {
  auto made = make_tcp_listeners(4);
  ASSERT_TRUE(made.ok());
  const Status status = connect_tcp_mesh({0, 4}, std::move(made->listeners[0]), made->ports, kKey,
                                         Deadline::after_ms(100))
                            .status();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.to_string().find("rank 1, rank 2, rank 3"), std::string::npos)
      << status.to_string();
}

TEST(TcpMeshTest, ALowerRankThatNeverAnswersIsNamedAtTheDeadline) {
  auto made = make_tcp_listeners(2);
  ASSERT_TRUE(made.ok());
  auto joined = std::async(std::launch::async, [&] {
    return connect_tcp_mesh({1, 2}, std::move(made->listeners[1]), made->ports, kKey,
                            Deadline::after_ms(100))
        .status();
  });
  // The kernel takes the connection, because rank 0's socket listens. Nobody reads from it.
  EXPECT_EQ(joined.wait_for(std::chrono::milliseconds(kGuardMs)), std::future_status::ready);
  made->listeners[0].reset();  // would end a handshake without a deadline
  const Status status = joined.get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.to_string().find("no answer from rank 0"), std::string::npos)
      << status.to_string();
}

TEST(TcpMeshTest, DeadLowerRankIsUnavailableAtOnce) {
  auto made = make_tcp_listeners(2);
  ASSERT_TRUE(made.ok());
  made->listeners[0].reset();
  const Status status = connect_tcp_mesh({1, 2}, std::move(made->listeners[1]), made->ports, kKey,
                                         Deadline::after_ms(kGuardMs))
                            .status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.to_string().find("rank 0"), std::string::npos) << status.to_string();
}

TEST(TcpMeshTest, WrongArgumentsAreRefused) {
  EXPECT_EQ(connect_tcp_mesh({0, 2}, Fd(), {1}, kKey, Deadline::after_ms(100)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(connect_tcp_mesh({2, 2}, Fd(), {1, 2}, kKey, Deadline::after_ms(100)).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(connect_tcp_mesh({0, 2}, Fd(), {1, 2}, kKey, Deadline::after_ms(100)).status().code(),
            Code::kInvalidArgument);
  // This descriptor does not listen.
  EXPECT_FALSE(connect_tcp_mesh({0, 2}, Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                                {1, 2}, kKey, Deadline::after_ms(kGuardMs))
                   .ok());
}

TEST(TcpMeshTest, SocketsDoNotDelay) {
  auto made = make_tcp_listeners(2);
  ASSERT_TRUE(made.ok());
  TcpMesh meshes[2];
  const auto join = [&](int rank) {
    auto mesh = connect_tcp_mesh({rank, 2}, std::move(made->listeners[rank]), made->ports, kKey,
                                 Deadline::after_ms(kGuardMs));
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    meshes[rank] = std::move(*mesh);
  };
  std::thread other(join, 1);
  join(0);
  other.join();
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(meshes[rank].peers.size(), 2u);
    EXPECT_FALSE(meshes[rank].peers[rank].valid());
    EXPECT_EQ(meshes[rank].cpus[1 - rank], meshes[1 - rank].cpus[1 - rank]);
    int no_delay = 0;
    socklen_t length = sizeof(no_delay);
    ASSERT_EQ(::getsockopt(meshes[rank].peers[1 - rank].get(), IPPROTO_TCP, TCP_NODELAY, &no_delay,
                           &length),
              0);
    EXPECT_NE(no_delay, 0);
  }
}

}  // namespace
}  // namespace shoal
