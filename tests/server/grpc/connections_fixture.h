#pragma once
#include <arpa/inet.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "server/grpc/connections/connections.h"

namespace shoal {

inline sockaddr_in loopback() {
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

/// Connections over real TCP. The test stands in for gRPC, which owns the descriptors.
class ConnectionsTest : public testing::Test {
 protected:
  using Room = Connections::Room;
  using Brought = Connections::Brought;

  void SetUp() override {
    sockaddr_in address = loopback();
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener_.get(), 64), 0);
  }
  /// Leaves room for `pairs` connections, of which the test holds both ends. request_bytes: what
  /// requests may take. memory: of the server.
  void start(int pairs, size_t request_bytes = Intake::Options{}.budget_bytes,
             std::function<size_t()> memory = nullptr) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1024;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    connections_.emplace(
        1024 - open_descriptors(1024) - 2 * pairs, request_bytes,
        memory ? std::move(memory) : [this] { return memory_; });
  }
  /// The one request of a call is whole.
  void request_came(const Pair& pair) {
    connections_->message_came(pair.peer, Brought::kNothing, Brought::kAll);
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
  size_t memory_ = size_t{20} << 20;  // of the server
  std::optional<Connections> connections_;
  std::vector<std::unique_ptr<Pair>> pairs_;
};

}  // namespace shoal
