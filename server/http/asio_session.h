#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "server/http/client_stream.h"
#include "server/http/http_exchange.h"
#include "server/http/request_reader.h"
#include "server/http/session.h"

namespace shoal {

/// A session on a connected socket, over TCP or a Unix socket, plain or through TLS.
class AsioSession final : public Session,
                          public HttpChannel,
                          public std::enable_shared_from_this<AsioSession> {
 public:
  AsioSession(StreamSocket socket, ssl_ctx_st* tls, const SessionContext& context,
              std::string client)
      : stream_(std::move(socket), tls),
        executor_(stream_.executor()),
        context_(context),
        client_(std::move(client)) {}

  void start() override {
    expect_head();
    enter(stream_.encrypted() ? State::kGreet : State::kHead);
    stream_.encrypted() ? greet() : read_more();
  }

  void tick(RunningClock::time_point now) override;
  void close() override;
  void evict() override {
    refuse({408, "the body stopped, and another request needed its place", "", "REQUEST_TIMEOUT"});
  }
  void stop() override {
    stopping_ = true;
    tick(RunningClock::now());
  }
  bool closed() const override { return state_ == State::kClosed; }
  bool has_request() const override {
    return state_ == State::kRoom || state_ == State::kBody || state_ == State::kAnswer;
  }
  bool busy() const override;
  bool holds_place() const override { return exchange_ != nullptr; }
  RunningClock::time_point since() const override { return since_; }
  bool awaits_body() const override { return state_ == State::kBody; }
  RunningClock::time_point last_read() const override { return std::max(read_, since_); }

  void read_body() override {
    boost::asio::post(executor_, [self = shared_from_this()] { self->take_body(); });
  }
  void wake() override {
    if (woken_.exchange(true)) return;
    boost::asio::post(executor_, [self = shared_from_this()] {
      self->woken_ = false;
      self->pump();
    });
  }

  uint64_t received() const override { return received_; }

 private:
  enum class State {
    kGreet,   // the handshake of TLS; its time counts as that of the first head
    kIdle,    // nothing of the next request has come
    kHead,    // its head is being read
    kRoom,    // its body waits until there is room for it
    kBody,    // its body is being read
    kAnswer,  // it is being answered; what comes now is the next request, or the client's end
    kLinger,  // the answer is written and the connection is half closed
    kClosed,
  };

  void enter(State state) {
    state_ = state;
    since_ = RunningClock::now();
  }
  void greet();
  void refuse_plain();
  void expect_head();
  void read_more();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void advance();
  bool parse(bool* again);
  void head_complete();
  void take_body();
  void body_complete();
  void refuse(const HttpError& error);
  void answer(HttpResponse response);
  void pump();
  void write(HttpPart part);
  void send(std::string bytes);
  void write_some();
  void on_write(const boost::system::error_code& error);
  void tick_exchange(RunningClock::time_point now);
  void report();
  void call_over();
  void linger();
  void client_gone();
  bool late(RunningClock::time_point now, RunningClock::time_point begin, int ms) const {
    return now - begin > std::chrono::milliseconds(ms);
  }

  ClientStream stream_;
  const StreamSocket::executor_type executor_;  // other threads post to it
  const SessionContext& context_;
  const std::string client_;
  std::atomic<bool> woken_ = false;
  std::atomic<uint64_t> received_ = 0;

  State state_ = State::kHead;
  RunningClock::time_point since_;
  std::string input_;   // what the outstanding read fills
  std::string buffer_;  // what has come and has not been read
  std::optional<RequestReader> reader_;
  bool reading_ = false;
  RunningClock::time_point read_ = RunningClock::now();  // when something came last
  bool ended_ = false;                                   // the client has sent its last byte

  HttpRequestHead head_;
  CallRecord record_;
  RunningClock::time_point begun_;
  bool keep_alive_ = false;
  bool stopping_ = false;
  std::shared_ptr<HttpExchange> exchange_;
  std::string sending_;  // what is being written, up to `written_` already
  size_t written_ = 0;
  std::string out_;  // what comes after it
  bool writing_ = false;
  RunningClock::time_point wrote_;  // when the last write began or ended
  bool last_ = false;               // what is being written ends the answer
  bool chunked_ = false;            // the answer is a stream in chunks
};

/// tls: OpenSSL's context; null: the connection is plain. client: the peer's address, as the intake
/// knows clients. The context must outlive it.
std::shared_ptr<Session> make_session(StreamSocket socket, ssl_ctx_st* tls,
                                      const SessionContext& context, std::string client);

}  // namespace shoal
