#include "server/http/body_exchange.h"

#include <utility>

namespace shoal {

BodyExchange::BodyExchange(std::shared_ptr<const HttpParts> parts, const HttpRequestHead& head,
                           size_t length)
    : parts_(std::move(parts)),
      origin_{.client = head.client,
              .deadline =
                  head.timeout_ms > 0 ? Deadline::after_ms(head.timeout_ms) : Deadline::infinite()},
      length_(length) {}

HttpError BodyExchange::too_late() {
  return {504, "the time that the proxy gave for the answer has passed", "", "DEADLINE_EXCEEDED"};
}

void BodyExchange::start(std::shared_ptr<HttpChannel> channel) {
  {
    const std::lock_guard lock(mutex_);
    channel_ = std::move(channel);
  }
  parts_->intake->enter(shared_from_this(), origin_.client, length_);
}

void BodyExchange::read() {
  std::shared_ptr<HttpChannel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (channel) channel->read_body();
}

uint64_t BodyExchange::received() {
  const std::lock_guard lock(mutex_);
  return channel_ ? channel_->received() : 0;
}

void BodyExchange::body(std::string bytes) {
  const size_t size = bytes.size();
  {
    const std::lock_guard lock(mutex_);
    body_ = std::move(bytes);
  }
  parts_->intake->arrived(*this, size);
}

void BodyExchange::work() {
  std::string body;
  {
    const std::lock_guard lock(mutex_);
    if (gone_ || answered_) return;
    body = std::move(body_);
  }
  process(std::move(body));
}

void BodyExchange::reject(const RefusedRequest& why) {
  answer(error_response(to_http_error(why)));
}

void BodyExchange::fail_body(HttpResponse why) {
  answer(std::move(why));
}

void BodyExchange::answer(HttpResponse response) {
  {
    const std::lock_guard lock(mutex_);
    if (answered_) return;
    answered_ = true;
    answer_ = std::move(response);
  }
  wake();
}

void BodyExchange::wake() {
  std::shared_ptr<HttpChannel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (channel) channel->wake();
}

std::optional<HttpPart> BodyExchange::next() {
  bool expired = false;
  {
    const std::lock_guard lock(mutex_);
    if (answer_) {
      HttpPart part{.head = std::move(*answer_), .has_head = true, .last = true};
      answer_.reset();
      return part;
    }
    if (answered_) return std::nullopt;
    expired = answered_ = origin_.deadline.passed();
  }
  if (!expired) return more();
  stop();
  return late();
}

void BodyExchange::client_gone() {
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
  }
  stop();
}

void BodyExchange::over() {
  std::shared_ptr<HttpChannel> last;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    last = std::move(channel_);
  }
  parts_->intake->leave(*this);
}

}  // namespace shoal
