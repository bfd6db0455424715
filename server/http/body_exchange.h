#pragma once
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "server/http/http_error.h"
#include "server/http/http_exchange.h"
#include "server/http/http_parts.h"
#include "server/intake/front_call.h"

namespace shoal {

/// A call whose body passes through the intake: it is read when there is room for it, and worked on
/// by a thread of the intake. A derived class says what the work is. Thread-safe: the event thread
/// calls it as an HttpExchange, and the intake as a FrontCall.
class BodyExchange : public HttpExchange,
                     public FrontCall,
                     public std::enable_shared_from_this<BodyExchange> {
 public:
  /// length: of the body if the client says it, otherwise kMaxRequestBytes.
  BodyExchange(std::shared_ptr<const HttpParts> parts, const HttpRequestHead& head, size_t length);

  void start(std::shared_ptr<HttpChannel> channel) final;
  void body(std::string bytes) final;
  void fail_body(HttpResponse why) final;
  void client_gone() final;
  void over() final;
  std::optional<HttpPart> next() final;
  std::optional<HttpPart> keep_alive() override { return std::nullopt; }

  void read() final;
  uint64_t received() final;
  void work() final;
  void reject(const RefusedRequest& why) final;
  void output_ready() final { wake(); }
  void drop_if_slow(std::chrono::milliseconds) final {}  // the connection does it

 protected:
  /// Works on the body, on a thread of the intake and without a lock. It calls answer(), or
  /// begins something that ends with it.
  virtual void process(std::string body) = 0;
  /// The next part of what process() has begun. Called by the event thread, without a lock.
  virtual std::optional<HttpPart> more() { return std::nullopt; }
  /// The client has gone: stop what process() has begun.
  virtual void stop() {}
  /// The request's deadline has passed: the part that ends the answer. Called by the event thread,
  /// without a lock, before there is an answer.
  virtual HttpPart late() {
    return {.head = error_response(too_late()), .has_head = true, .last = true};
  }
  static HttpError too_late();

  /// Answers with this, unless there is an answer already. Any thread may call it.
  void answer(HttpResponse response);
  void wake();

  const HttpParts& parts() const { return *parts_; }
  const RequestOrigin& origin() const { return origin_; }

 private:
  const std::shared_ptr<const HttpParts> parts_;
  const RequestOrigin origin_;  // it arrived when its head had been read
  const size_t length_;
  mutable std::mutex mutex_;
  std::shared_ptr<HttpChannel> channel_;  // null before start() and after over()
  std::string body_;
  std::optional<HttpResponse> answer_;
  bool answered_ = false;
  bool gone_ = false;
};

}  // namespace shoal
