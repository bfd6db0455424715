#include "server/http/asio_session.h"

#include "runtime/base/log.h"
#include "server/http/http_writer.h"
#include "server/http/request_reader.h"

namespace shoal {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReadBytes = size_t{4} << 10;
constexpr size_t kBodyReadBytes = size_t{64} << 10;
/// What a client may send before its request has been answered. The rest waits in the kernel, and
/// only then is it not seen at once that the client leaves.
constexpr size_t kMaxPipelined = size_t{64} << 10;
/// How long a connection that is being closed still reads, because otherwise the kernel would reset
/// it, and the client would lose the answer.
constexpr std::chrono::milliseconds kLingerTime{2'000};
/// How long a client surely has to send its request's head, and to take an answer's end, before its
/// connection may have to go for another.
constexpr std::chrono::milliseconds kMoment{250};

}  // namespace

bool AsioSession::busy() const {
  return has_request() || (state_ != State::kIdle && RunningClock::now() - since_ < kMoment);
}

void AsioSession::greet() {
  using Greeting = ClientStream::Greeting;
  stream_.async_greet([self = shared_from_this()](Greeting greeting, const std::string& why) {
    if (self->state_ != State::kGreet) return;
    switch (greeting) {
      case Greeting::kDone:
        self->state_ = State::kHead;  // since when it waits for the head does not change
        return self->read_more();
      case Greeting::kPlain:
        return self->refuse_plain();
      case Greeting::kFailed:
        log_debug(cat("http: the TLS handshake of ", self->client_, " failed: ", why));
        return self->close();
    }
  });
}

/// Tells a client that speaks HTTP without TLS what is wrong. The bytes were never parsed as a
/// request, so they do not count as one.
void AsioSession::refuse_plain() {
  log_debug(cat("http: ", client_, " does not speak TLS; refused"));
  const HttpError error{400, "this port speaks TLS: use https://", "", "TLS_REQUIRED"};
  sending_ = head_text(error_response(error), {});
  stream_.async_write_some(asio::buffer(sending_),
                           [self = shared_from_this()](const error_code&, size_t) {
                             if (self->state_ == State::kGreet) self->linger();
                           });
}

void AsioSession::expect_head() {
  reader_.emplace(context_.limits.header_bytes, context_.routing.parts->max_body_bytes);
  head_ = {};
  record_ = {};
  begun_ = RunningClock::now();
  last_ = chunked_ = false;
}

/// One read is always outstanding, except while a client that is ahead of its answer is held back.
/// So the end of a connection is seen at once.
void AsioSession::read_more() {
  if (reading_ || ended_ || state_ == State::kClosed) return;
  if ((state_ == State::kRoom || state_ == State::kAnswer) && buffer_.size() >= kMaxPipelined)
    return;
  reading_ = true;
  input_.resize(state_ == State::kBody ? kBodyReadBytes : kReadBytes);
  stream_.async_read_some(asio::buffer(input_),
                          [self = shared_from_this()](const error_code& error, size_t bytes) {
                            self->reading_ = false;
                            self->on_read(error, bytes);
                          });
}

void AsioSession::on_read(const error_code& error, size_t bytes) {
  if (state_ == State::kClosed) return;
  if (error) {
    ended_ = true;
    return client_gone();
  }
  read_ = RunningClock::now();
  received_ += bytes;
  if (state_ != State::kLinger) buffer_.append(input_, 0, bytes);
  advance();
}

/// Goes through as many states as the received bytes allow, and then reads more.
void AsioSession::advance() {
  for (bool again = true; again;) {
    again = false;
    if (state_ == State::kIdle && !buffer_.empty()) enter(State::kHead);
    if (state_ != State::kHead && state_ != State::kBody) break;
    if (buffer_.empty() || !parse(&again)) break;
  }
  read_more();
}

/// Reads what has come. Returns false if more is needed first, or if the request is wrong.
bool AsioSession::parse(bool* again) {
  // Blank lines before a request are allowed, because old clients sent one after a body.
  while (state_ == State::kHead && buffer_.starts_with("\r\n")) buffer_.erase(0, 2);
  const RequestReader::Progress progress = reader_->read(buffer_);
  buffer_.erase(0, progress.used);
  if (!progress.wrong.ok()) {
    refuse(progress.wrong);
    return false;
  }
  if (progress.needs_more && progress.used == 0) {
    // The sizes of chunks, their extensions and what follows them are no part of the body.
    if (buffer_.size() > context_.limits.header_bytes + kBodyReadBytes)
      refuse({400, "a chunk's head is longer than this server reads", "", "BAD_REQUEST"});
    return false;
  }
  if (state_ == State::kHead && reader_->head_done()) {
    head_complete();
    *again = state_ == State::kIdle;
  } else if (state_ == State::kBody && reader_->done()) {
    body_complete();
  } else {
    *again = progress.used > 0;
  }
  return true;
}

void AsioSession::head_complete() {
  head_ = reader_->head(client_);
  begun_ = RunningClock::now();
  record_ = {.method = head_.method_name};
  keep_alive_ = reader_->keep_alive() && !stopping_;
  if (!reader_->framing_is_clear())
    return refuse({400, "the only transfer coding that is taken is one \"chunked\", in HTTP/1.1",
                   "", "TRANSFER_ENCODING"});
  if (!head_.http_1_0 && !reader_->has_one_host())
    return refuse({400, "an HTTP/1.1 request has exactly one Host header", "", "BAD_REQUEST"});
  const size_t length = reader_->length().value_or(context_.routing.parts->max_body_bytes);
  Routed routed = route_request(head_, length, context_.has_place, context_.routing);
  record_.route = routed.route;
  if (routed.route == HttpRoute::kUnknown) record_.path = head_.path;
  if (auto* response = std::get_if<HttpResponse>(&routed.answer)) {
    // A body that nobody reads would be taken for the next request.
    if (length > 0 || routed.without_place) keep_alive_ = false;
    return answer(std::move(*response));
  }
  exchange_ = std::get<std::shared_ptr<HttpExchange>>(std::move(routed.answer));
  enter(State::kRoom);
  exchange_->start(shared_from_this());
}

/// There is room for the body.
void AsioSession::take_body() {
  if (state_ != State::kRoom) return;
  enter(State::kBody);
  reader_->read_body();
  if (reader_->done()) return body_complete();  // it is empty
  if (!head_.http_1_0 && reader_->expects_continue() && buffer_.empty()) send(continue_line());
  advance();
}

void AsioSession::body_complete() {
  enter(State::kAnswer);
  exchange_->body(reader_->take_body());
}

/// The request cannot be read any further.
void AsioSession::refuse(const HttpError& error) {
  keep_alive_ = false;
  if (exchange_) {
    enter(State::kAnswer);
    return exchange_->fail_body(error_response(error));
  }
  answer(error_response(error));
}

void AsioSession::answer(HttpResponse response) {
  enter(State::kAnswer);
  write({.head = std::move(response), .has_head = true, .last = true});
}

/// Writes the next part of the answer, if there is one.
void AsioSession::pump() {
  if (!exchange_ || writing_ || state_ == State::kClosed) return;
  if (std::optional<HttpPart> part = exchange_->next()) write(std::move(*part));
}

void AsioSession::write(HttpPart part) {
  std::string bytes;
  if (part.has_head) {
    // The rest of a body that is answered before it has been read would be the next request.
    if (state_ != State::kAnswer) {
      keep_alive_ = false;
      enter(State::kAnswer);
    }
    chunked_ = part.stream && !head_.http_1_0;
    if (part.stream && head_.http_1_0) keep_alive_ = false;
    record_.status = part.head.status;
    for (auto& header : cors_headers(head_, context_.routing.access))
      part.head.headers.push_back(std::move(header));
    if (!head_.request_id.empty()) part.head.headers.emplace_back("x-request-id", head_.request_id);
    bytes = head_text(part.head, {.keep_alive = keep_alive_,
                                  .http_1_0 = head_.http_1_0,
                                  .stream = part.stream,
                                  .without_body = head_.method == HttpMethod::kHead});
  }
  if (part.stream) bytes += chunked_ ? chunk_text(part.bytes, part.last) : part.bytes;
  last_ = part.last;
  record_.bytes += bytes.size();
  send(std::move(bytes));
}

void AsioSession::send(std::string bytes) {
  out_ += bytes;
  if (!writing_) write_some();
}

/// Writes what the socket takes. Each part that a client takes shows that it reads.
void AsioSession::write_some() {
  writing_ = true;
  wrote_ = RunningClock::now();
  if (written_ == sending_.size()) {
    sending_ = std::exchange(out_, {});
    written_ = 0;
  }
  stream_.async_write_some(asio::buffer(sending_) + written_,
                           [self = shared_from_this()](const error_code& error, size_t bytes) {
                             self->writing_ = false;
                             self->written_ += bytes;
                             self->on_write(error);
                           });
}

void AsioSession::on_write(const error_code& error) {
  if (state_ == State::kClosed) return;
  if (error) return client_gone();
  if (written_ < sending_.size() || !out_.empty()) return write_some();
  wrote_ = RunningClock::now();
  sending_ = {};
  written_ = 0;
  if (last_) return call_over();
  pump();
}

void AsioSession::report() {
  record_.seconds = std::chrono::duration<double>(RunningClock::now() - begun_).count();
  if (exchange_) record_.summary = exchange_->summary();
  if (record_.summary.request_id.empty()) record_.summary.request_id = head_.request_id;
  context_.done(record_);
}

void AsioSession::call_over() {
  report();
  if (exchange_) std::exchange(exchange_, nullptr)->over();
  if (!keep_alive_ || stopping_) return linger();
  expect_head();
  if (buffer_.empty()) buffer_.shrink_to_fit();
  enter(State::kIdle);
  advance();
}

void AsioSession::linger() {
  enter(State::kLinger);
  stream_.end_sending();
  buffer_.clear();
  if (ended_) return close();
  read_more();
}

/// The client has closed the connection, or does not do its part.
void AsioSession::client_gone() {
  if (state_ == State::kLinger) return close();  // its call has been reported
  if (exchange_) exchange_->client_gone();
  if (exchange_ || record_.status != 0) report();
  close();
}

void AsioSession::close() {
  if (state_ == State::kClosed) return;
  enter(State::kClosed);
  stream_.close();
  if (exchange_) {
    const std::shared_ptr<HttpExchange> last = std::exchange(exchange_, nullptr);
    last->client_gone();
    last->over();
  }
}

/// Looks at an answer that is being made.
void AsioSession::tick_exchange(RunningClock::time_point now) {
  const HttpParts& parts = *context_.routing.parts;
  pump();  // the request's deadline may have passed, or there is something to write
  if (exchange_ && exchange_->unread_bytes() > parts.max_unread_bytes) {
    log_info(cat("http: ", client_, " does not read its answer; closed"),
             {{"event", "http_slow_client"}, {"client", client_}, {"limit_ms", LogValue()}});
    return client_gone();
  }
  const std::chrono::milliseconds silence(parts.keep_alive_ms);
  if (writing_ || !exchange_ || silence.count() == 0 || now - std::max(wrote_, begun_) <= silence)
    return;
  if (std::optional<HttpPart> part = exchange_->keep_alive()) write(std::move(*part));
}

void AsioSession::tick(RunningClock::time_point now) {
  if (stopping_ && state_ != State::kLinger && !busy()) return close();
  const SessionLimits& limits = context_.limits;
  if (writing_ && late(now, wrote_, limits.slow_reader_ms)) {
    log_info(
        cat("http: ", client_, " has not read for ", limits.slow_reader_ms, " ms; closed"),
        {{"event", "http_slow_client"}, {"client", client_}, {"limit_ms", limits.slow_reader_ms}});
    return client_gone();
  }
  switch (state_) {
    case State::kGreet:
      if (late(now, since_, limits.header_ms)) close();
      break;
    case State::kIdle:
      if (late(now, since_, limits.idle_ms)) close();
      break;
    case State::kHead:
      if (late(now, since_, limits.header_ms))
        refuse({408, "the head of the request did not come in time", "", "REQUEST_TIMEOUT"});
      break;
    case State::kBody:
      if (late(now, since_, limits.body_ms))
        refuse({408, "the body of the request did not come in time", "", "REQUEST_TIMEOUT"});
      else
        pump();  // the request's deadline may have passed
      break;
    case State::kAnswer:
      if (exchange_) tick_exchange(now);
      break;
    case State::kLinger:
      if (now - since_ > kLingerTime) close();
      break;
    case State::kRoom:
      pump();  // the request's deadline may have passed while it waits for room
      break;
    case State::kClosed:
      break;
  }
}

std::shared_ptr<Session> make_session(StreamSocket socket, ssl_ctx_st* tls,
                                      const SessionContext& context, std::string client) {
  return std::make_shared<AsioSession>(std::move(socket), tls, context, std::move(client));
}

}  // namespace shoal
