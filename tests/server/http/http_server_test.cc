// Clients that come while the server is full or ends.
#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <atomic>
#include <gtest/gtest.h>
#include <latch>
#include <mutex>
#include <sys/socket.h>

#include "runtime/base/fd.h"
#include "runtime/base/running_clock.h"

namespace shoal {
namespace {

std::atomic<int64_t> clock_ms = 0;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    RunningClock::set_source(
        []() -> RunningClock::duration { return std::chrono::milliseconds(clock_ms.load()); });
  }
  ~HttpServerTest() override {
    server_.reset();
    RunningClock::set_source(nullptr);
  }

  void start(int max_connections, std::function<void(const CallRecord&)> done) {
    auto parts = std::make_shared<HttpParts>();
    parts->version = "1";
    parts->front_alive = [] { return true; };
    parts->state = std::make_shared<ServingState>(std::vector<std::string>{"model"});
    // For one request at a time.
    parts->intake =
        std::make_shared<Intake>(Intake::Options{.budget_bytes = kMaxRequestBytes}, parts->state);
    HttpServerOptions options;
    options.port = 0;
    options.max_connections = max_connections;
    options.routing = {.parts = parts, .access = {}, .keys = std::make_shared<ApiKeys>()};
    options.done = std::move(done);
    Result<std::unique_ptr<HttpServer>> server = HttpServer::start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  Fd connect() const {
    const std::string address = server_->address();
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return socket;
  }
  static void say(const Fd& client, const std::string& text) {
    EXPECT_EQ(::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  static void ask(const Fd& client, const std::string& path = "/version") {
    say(client, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  }
  /// A new connection with a request whose body waits for the server's word.
  Fd begin_request() const {
    Fd client = connect();
    say(client,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
    // The event thread takes turns, and has read that when it has answered these.
    for (int i = 0; i < 3; ++i) {
      const Fd probe = connect();
      ask(probe, "/health");
      EXPECT_NE(answer(probe), "");
    }
    return client;
  }
  /// Waits until the server asks for the body.
  static void expect_room(const Fd& client) {
    char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    EXPECT_EQ(::recv(client.get(), text, sizeof text - 1, MSG_WAITALL),
              static_cast<ssize_t>(sizeof text - 1));
    EXPECT_STREQ(text, "HTTP/1.1 100 Continue\r\n\r\n");
  }
  static bool has_heard_nothing(const Fd& client) {
    char byte = 0;
    return ::recv(client.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == -1;
  }
  /// All that comes until the end of the connection.
  static std::string answer(const Fd& client) {
    std::string text(4096, '\0');
    size_t size = 0;
    for (ssize_t n = 1; n > 0; size += static_cast<size_t>(std::max<ssize_t>(n, 0)))
      n = ::recv(client.get(), text.data() + size, text.size() - size, 0);
    return text.substr(0, size);
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ThoseWhoSendNothingKeepNobodyOutAlthoughTheyHaveJustCome) {
  start(1, [](const CallRecord&) {});
  std::vector<Fd> silent;  // more than the server takes, and its clock stands still
  for (int i = 0; i < 100; ++i) silent.push_back(connect());
  const Fd client = connect();
  ask(client);
  const std::string text = answer(client);
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 ")) << text;
}

TEST_F(HttpServerTest, ARequestThatHasWaitedForRoomIsNotOneThatHasStopped) {
  start(2, [](const CallRecord&) {});
  Fd first = begin_request();
  expect_room(first);
  const Fd second = begin_request();
  clock_ms += 2'000;
  first.reset();
  expect_room(second);
  const Fd third = begin_request();  // waits for room, so that both places are taken
  const Fd refused = connect();
  ask(refused);
  EXPECT_TRUE(answer(refused).starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(has_heard_nothing(second)) << "it was asked for its body in this moment";
  clock_ms += 2'000;
  const Fd served = connect();
  ask(served);
  EXPECT_TRUE(answer(served).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(answer(second).starts_with("HTTP/1.1 408 ")) << "now it has stopped";
}

TEST_F(HttpServerTest, ThoseWhoHaveJustComeAreAnsweredAtTheEnd) {
  std::once_flag once;
  std::latch held{2};  // the event thread, after the first call
  std::latch goes_on{1};
  start(8, [&](const CallRecord&) {
    std::call_once(once, [&] {
      held.arrive_and_wait();
      goes_on.wait();
    });
  });
  const Fd accepted = connect();
  const Fd silent = connect();
  const Fd first = connect();  // the others are accepted before it
  ask(first);
  held.arrive_and_wait();
  ask(accepted);
  const Fd waits = connect();  // in the kernel's queue
  ask(waits);
  server_->stop_accepting();
  goes_on.count_down();
  for (const Fd* client : {&accepted, &waits}) {
    const std::string text = answer(*client);
    EXPECT_TRUE(text.starts_with("HTTP/1.1 200 ")) << text;
  }
  EXPECT_TRUE(has_heard_nothing(silent)) << "it is waited for";
  clock_ms += 1'000;
  EXPECT_EQ(answer(silent), "") << "but not for long";
  server_.reset();  // before what its thread calls
}

}  // namespace
}  // namespace shoal
