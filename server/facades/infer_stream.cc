#include "server/facades/infer_stream.h"

#include <algorithm>
#include <grpcpp/grpcpp.h>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "server/facades/infer_answer.h"
#include "server/facades/infer_dialect.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/wire_message.h"
#include "server/intake/front_call.h"
#include "server/intake/request_log.h"

namespace shoal {

namespace {

/// Beyond this many requests without an answer nothing more is read from the stream.
constexpr size_t kMostOpen = 1024;

}  // namespace

size_t OpenStreams::count(const std::string& client) const {
  return static_cast<size_t>(
      std::count_if(streams_.begin(), streams_.end(),
                    [&](const auto& entry) { return entry.second.client == client; }));
}

bool OpenStreams::enter(const std::shared_ptr<InferStream>& stream, const std::string& client) {
  std::shared_ptr<InferStream> idle;  // whose call is ended without the lock
  {
    const std::lock_guard lock(mutex_);
    const bool too_many_of_client = count(client) >= kMostOfClient;
    if (too_many_of_client || streams_.size() >= kMost) {
      std::optional<RunningClock::time_point> longest;
      for (const auto& [address, entry] : streams_) {
        if (too_many_of_client && entry.client != client) continue;
        const std::shared_ptr<InferStream> other = entry.stream.lock();
        const std::optional<RunningClock::time_point> since =
            other ? other->idle_since() : std::nullopt;
        if (!since || (longest && *since >= *longest)) continue;
        longest = since;
        idle = other;
      }
      if (!idle) return false;
      streams_.erase(idle.get());
    }
    streams_[stream.get()] = {stream, client};
  }
  if (idle) idle->end_if_idle();
  return true;
}

void OpenStreams::leave(const InferStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

/// One request of the stream. The stream's mutex guards what is not const.
class InferStream::Item final : public FrontCall, public std::enable_shared_from_this<Item> {
 public:
  Item(std::shared_ptr<InferStream> stream, grpc::ByteBuffer bytes)
      : stream_(std::move(stream)), bytes_(std::move(bytes)), size_(bytes_.Length()) {}

  size_t size() const { return size_; }

  void read() override {
    stream_->parts_.intake->arrived(*this, size_);
    stream_->read_next();
  }
  uint64_t received() override { return size_; }  // it is whole when it may be read
  void work() override;
  void reject(const RefusedRequest& why) override {
    {
      const std::lock_guard lock(stream_->mutex_);
      read_infer_names(&bytes_, &id_, &model_name_);
      bytes_.Clear();
    }
    refuse(to_grpc_status(why, stream_->dialect_->field_path(why.error.field)));
    stream_->read_next();
  }
  void output_ready() override { stream_->output_ready(); }
  void drop_if_slow(std::chrono::milliseconds limit) override { stream_->drop_if_slow(limit); }

  /// The next message; nullopt if there is none yet. The stream's mutex must be held.
  std::optional<AnswerMessage> next();
  void give_up() {
    given_up_ = true;
    if (request_) request_->give_up();
  }
  /// The request has been answered, or nobody waits for that any more: then its thread may still
  /// work on it. The stream's mutex must not be held.
  void leave() {
    stream_->parts_.intake->leave(*this);
    const std::lock_guard lock(stream_->mutex_);
    log_end();
  }

 private:
  void submit(IncomingRequest incoming);
  void refuse(const grpc::Status& why) {
    {
      const std::lock_guard lock(stream_->mutex_);
      if (!failure_) failure_ = why;
    }
    stream_->output_ready();
  }
  void log_end() const;

  const std::shared_ptr<InferStream> stream_;
  grpc::ByteBuffer bytes_;
  const size_t size_;
  std::string id_, model_name_;  // the client's
  std::shared_ptr<LiveRequest> request_;
  std::unique_ptr<CallAnswer> answer_;
  std::optional<grpc::Status> failure_;  // why it was not accepted
  bool accepted_ = false;
  bool given_up_ = false;
  const RunningClock::time_point begun_ = RunningClock::now();
};

void InferStream::Item::work() {
  grpc::ByteBuffer bytes;
  {
    const std::lock_guard lock(stream_->mutex_);
    if (given_up_) return;
    bytes.Swap(&bytes_);
  }
  const ServingState& state = *stream_->parts_.state;
  inference::ModelInferRequest message;
  read_infer_names(&bytes, &id_, &model_name_);
  const WireRefusal refusal = parse_message(&bytes, wire_bounds(state), &message);
  if (!refusal.ok()) return refuse(to_grpc_status(refusal));
  Result<IncomingRequest, grpc::Status> incoming = read_infer(state, std::move(message), true);
  if (!incoming.ok()) return refuse(incoming.error());
  submit(std::move(incoming).value());
}

void InferStream::Item::submit(IncomingRequest incoming) {
  if (const RefusedRequest none = stream_->parts_.intake->keep_answer(*this, incoming.kept_bytes);
      !none.ok())
    return refuse(to_grpc_status(none));
  RequestOrigin origin;
  const auto request =
      LiveRequest::make(stream_->parts_.intake, std::move(incoming.id), shared_from_this());
  {
    const std::lock_guard lock(stream_->mutex_);
    if (given_up_) return;
    request_ = request;
    answer_ = std::move(incoming.answer);
    origin = stream_->origin_;
    origin.arrived = Clock::now();
    origin.deadline = sooner(origin.deadline, incoming.first_token);
  }
  const Result<LiveRequest::Accepted, RefusedRequest> accepted =
      request->submit(std::move(incoming.request), origin);
  if (!accepted.ok())
    return refuse(to_grpc_status(accepted.error(),
                                 stream_->dialect_->field_path(accepted.error().error.field)));
  {
    const std::lock_guard lock(stream_->mutex_);
    answer_->begin(accepted->model, static_cast<int32_t>(accepted->prompt_ids.size()));
    accepted_ = true;
  }
  stream_->output_ready();
}

std::optional<AnswerMessage> InferStream::Item::next() {
  if (!failure_ && accepted_) {
    answer_->add(request_->take());
    if (const RefusedRequest* refused = answer_->refused())
      failure_ = to_grpc_status(*refused, stream_->dialect_->field_path(refused->error.field));
  }
  if (failure_) return AnswerMessage{infer_error(id_, model_name_, *failure_), grpc::Status::OK};
  if (!accepted_) return std::nullopt;
  return answer_->next(stream_->parts_.state->draining());
}

void InferStream::Item::log_end() const {
  const OutputEnd* end = answer_ ? answer_->end() : nullptr;
  const Code code = failure_         ? static_cast<Code>(failure_->error_code())
                    : end == nullptr ? Code::kCancelled
                                     : end->status.code();
  log_request_end("grpc", "ModelStreamInfer", code, end, RunningClock::now() - begun_,
                  request_.get());
}

InferStream::Reactor* InferStream::start(grpc::CallbackServerContext* context,
                                         const std::string& client) {
  auto* const call = new Call(shared_from_this(), context);
  const std::lock_guard lock(mutex_);
  call_ = call;
  origin_ = {client, deadline_of(*context)};
  reading_ = true;
  call->StartRead(&request_bytes_);
  return call;
}

/// The next request is read once the intake has room for the last one.
void InferStream::read_next() {
  const std::lock_guard lock(mutex_);
  if (reading_ || all_read_ || finished_ || gone_ || items_.size() >= kMostOpen) return;
  reading_ = true;
  call_->StartRead(&request_bytes_);
}

void InferStream::read_done(bool ok) {
  std::shared_ptr<Item> item;
  std::string client;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (!ok || finished_ || gone_) {
      all_read_ = true;
      return pump();
    }
    item = std::make_shared<Item>(shared_from_this(), std::move(request_bytes_));
    request_bytes_ = {};
    items_.push_back(item);
    client = origin_.client;
  }
  parts_.intake->enter(item, client, item->size());
}

void InferStream::written(bool ok) {
  std::shared_ptr<Item> ended;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    ended.swap(leaving_);
    if (ended && items_.empty()) idle_since_ = RunningClock::now();
    if (!ok) lose_client();
    pump();
  }
  if (!ended) return;
  ended->leave();
  read_next();
}

void InferStream::client_gone() {
  const std::lock_guard lock(mutex_);
  lose_client();
  pump();
}

void InferStream::output_ready() {
  const std::lock_guard lock(mutex_);
  pump();
}

void InferStream::call_done() {
  Items left;
  {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    finished_ = true;
    lose_client();
    left.swap(items_);
    if (leaving_) left.push_back(std::move(leaving_));
  }
  for (const std::shared_ptr<Item>& item : left) item->leave();
  open_->leave(this);
}

std::optional<RunningClock::time_point> InferStream::idle_since() {
  const std::lock_guard lock(mutex_);
  if (!items_.empty() || leaving_ || finished_) return std::nullopt;
  return idle_since_;
}

/// A request that has come since stays: then there is one stream more for a while.
void InferStream::end_if_idle() {
  const std::lock_guard lock(mutex_);
  if (!items_.empty() || leaving_ || finished_ || call_ == nullptr) return;
  finished_ = true;
  call_->Finish(to_grpc_status(
      Status::error(Code::kUnavailable,
                    "this ModelStreamInfer call had no request, and was ended for a new one"),
      {.reason = "IDLE_STREAM"}));
}

void InferStream::lose_client() {
  gone_ = true;
  for (const std::shared_ptr<Item>& item : items_) item->give_up();
}

void InferStream::drop_if_slow(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  if (call_ == nullptr || !writing_ || slow_) return;
  if (parts_.probe->answered() - write_started_ <= limit) return;
  slow_ = true;
  log_warning(cat("ModelStreamInfer: the client has not read for ", limit.count(), " ms; its ",
                  counted(items_.size(), "request is", "requests are"), " cancelled"),
              {{"event", "grpc_slow_client"},
               {"request_id", LogValue()},
               {"requests", static_cast<int64_t>(items_.size())},
               {"limit_ms", limit.count()}});
  call_->cancel();
}

/// Returns false if the request has nothing to say yet.
bool InferStream::write_from(const std::shared_ptr<Item>& item) {
  std::optional<AnswerMessage> message = item->next();
  if (!message) return false;
  writing_ = true;
  write_started_ = parts_.probe->answered();
  response_ = std::move(*message->bytes);
  if (message->end)
    leaving_ = item;
  else
    items_.push_back(item);
  call_->StartWrite(&response_);
  return true;
}

/// Starts the next write if there is output and no write is outstanding. The requests take turns.
/// It may hold mutex_, because gRPC calls reactors on its own threads, never inside StartWrite or
/// Finish.
void InferStream::pump() {
  if (writing_ || finished_ || call_ == nullptr) return;
  if (gone_) {
    finished_ = true;
    const bool late = call_->late();
    return call_->Finish({late ? grpc::StatusCode::DEADLINE_EXCEEDED : grpc::StatusCode::CANCELLED,
                          slow_  ? "the client did not read its stream"
                          : late ? "the deadline passed"
                                 : "cancelled by the client"});
  }
  for (size_t left = items_.size(); left > 0; --left) {
    const std::shared_ptr<Item> item = std::move(items_.front());
    items_.pop_front();
    if (write_from(item)) return;
    items_.push_back(item);
  }
  if (!all_read_ || !items_.empty()) return;
  finished_ = true;
  call_->Finish(grpc::Status::OK);
}

}  // namespace shoal
