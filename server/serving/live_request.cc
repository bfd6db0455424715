#include "server/serving/live_request.h"

#include <utility>

namespace shoal {

namespace {

size_t bytes_of(const OutputDelta& delta) {
  size_t bytes = sizeof delta + delta.text.size();
  for (const SampledToken& token : delta.tokens)
    bytes += sizeof token + token.top.size() * sizeof token.top.front();
  return bytes;
}

}  // namespace

LiveRequest::LiveRequest(std::shared_ptr<ServingState> state, std::string id,
                         std::shared_ptr<FrontCall> call)
    : state_(std::move(state)), id_(std::move(id)), call_(std::move(call)) {}

Result<ServingState::Accepted, RefusedRequest> LiveRequest::submit(GenerationRequest request,
                                                                   const RequestOrigin& origin) {
  Result<ServingState::Accepted, RefusedRequest> accepted =
      state_->submit(id_, std::move(request), shared_from_this(), origin, &given_up_);
  if (!accepted.ok()) return accepted;
  bool left = false;
  {
    const std::lock_guard lock(mutex_);
    loop_ = accepted->loop;
    loop_id_ = accepted->id;
    left = left_;
  }
  // The client went, or its call ended, before the loop had the request.
  if (given_up_) accepted->loop->cancel(accepted->id);
  if (left) state_->leave(id_, this);
  return accepted;
}

void LiveRequest::give_up() {
  given_up_ = true;
  InferenceLoop* loop = nullptr;
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    loop = loop_;
    id = loop_id_;
  }
  if (loop != nullptr) loop->cancel(id);
}

LiveRequest::Output LiveRequest::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(output_, {});
}

size_t LiveRequest::untaken_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void LiveRequest::release_id() {
  state_->release_id(id_, this);
}

void LiveRequest::leave() {
  std::shared_ptr<FrontCall> last;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
    last = std::move(call_);
  }
  state_->leave(id_, this);
}

std::shared_ptr<FrontCall> LiveRequest::call() const {
  const std::lock_guard lock(mutex_);
  return call_;
}

void LiveRequest::on_delta(OutputDelta delta) {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    bytes_ += bytes_of(delta);
    output_.deltas.push_back(std::move(delta));
  }
  if (const auto front = call()) front->output_ready();
}

void LiveRequest::on_end(OutputEnd end) {
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    output_.end = std::move(end);
  }
  if (const auto front = call()) front->output_ready();
}

void LiveRequest::drop_slow_reader(std::chrono::milliseconds limit) {
  if (const auto front = call()) front->drop_if_slow(limit);
}

}  // namespace shoal
