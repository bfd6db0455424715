#include "server/grpc/generate_stream.h"

#include <grpcpp/grpcpp.h>
#include <utility>

#include "runtime/base/log.h"
#include "server/grpc/grpc_status.h"
#include "server/intake/request_log.h"

namespace shoal {

GenerateStream::GenerateStream(ServiceParts parts, std::shared_ptr<const Dialect> dialect,
                               const grpc::CallbackServerContext& context,
                               std::optional<int64_t> priority)
    : parts_(std::move(parts)),
      dialect_(std::move(dialect)),
      priority_(priority),
      peer_(context.peer()),
      origin_{address_of(peer_), deadline_of(context)} {}

GenerateStream::Reactor* GenerateStream::start(grpc::CallbackServerContext* context) {
  auto* const call = new Call(shared_from_this(), context);
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
  }
  parts_.intake->enter(shared_from_this(), origin_.client);
  return call;
}

void GenerateStream::read() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  reading_ = true;
  call_->StartRead(&request_bytes_);
}

uint64_t GenerateStream::received() {
  return parts_.connections->received(peer_);
}

void GenerateStream::read_done(bool ok) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (finished_) return request_bytes_.Clear();
    if (!ok) return finish(no_request());
    bytes = request_bytes_.Length();
  }
  parts_.intake->arrived(*this, bytes);
}

void GenerateStream::reject(const RefusedRequest& why) {
  const std::lock_guard lock(mutex_);
  if (!finished_) refuse(why);
}

void GenerateStream::work() {
  grpc::ByteBuffer bytes;
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    bytes.Swap(&request_bytes_);
  }
  Result<IncomingRequest, grpc::Status> incoming = dialect_->read(*parts_.state, &bytes);
  if (incoming.ok()) return submit(std::move(incoming).value());
  const std::lock_guard lock(mutex_);
  if (!finished_) finish(incoming.error());
}

/// Holds no lock while the prompt is tokenized and queued. Output that comes before it is known
/// here that the request was accepted waits. The client may go at any time.
void GenerateStream::submit(IncomingRequest incoming) {
  if (const RefusedRequest none = parts_.intake->keep_answer(*this, incoming.kept_bytes);
      !none.ok())
    return reject(none);
  RequestOrigin origin = origin_;
  origin.deadline = sooner(origin.deadline, incoming.first_token);
  const auto request = LiveRequest::make(parts_.intake, std::move(incoming.id), shared_from_this());
  {
    const std::lock_guard lock(mutex_);
    request_ = request;
    answer_ = std::move(incoming.answer);
    if (priority_) incoming.request.priority = priority_;
    if (gone_) request->give_up();
  }
  const Result<LiveRequest::Accepted, RefusedRequest> accepted =
      request->submit(std::move(incoming.request), origin);
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (!accepted.ok()) return refuse(accepted.error());
  accepted_ = true;
  answer_->begin(accepted->model, static_cast<int32_t>(accepted->prompt_ids.size()));
  pump();
}

void GenerateStream::output_ready() {
  const std::lock_guard lock(mutex_);
  pump();
}

void GenerateStream::written(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) lose_client();
  pump();
}

void GenerateStream::client_gone() {
  const std::lock_guard lock(mutex_);
  lose_client();
  pump();
}

void GenerateStream::call_done() {
  {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    log_end();
  }
  parts_.intake->leave(*this);
}

void GenerateStream::drop_if_slow(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  if (call_ == nullptr || !writing_ || slow_) return;
  if (parts_.probe->answered() - write_started_ <= limit) return;
  slow_ = true;
  log_warning(cat("request ", request_->id(), ": the client has not read for ", limit.count(),
                  " ms; cancelled"),
              {{"event", "grpc_slow_client"},
               {"request_id", request_->id()},
               {"requests", 1},
               {"limit_ms", limit.count()}});
  call_->cancel();
}

/// Starts the next write if there is output and no write is outstanding. It may hold mutex_,
/// because gRPC calls reactors on its own threads, never inside StartWrite or Finish.
void GenerateStream::pump() {
  if (writing_ || finished_) return;
  if (gone_) return finish(gone_status());
  if (!accepted_) return;
  answer_->add(request_->take());
  if (const RefusedRequest* refused = answer_->refused()) {
    request_->release_id();
    return refuse(*refused);
  }
  std::optional<AnswerMessage> message = answer_->next(parts_.state->draining());
  if (!message) return;
  if (message->end) request_->release_id();
  if (!message->bytes) return finish(*message->end);
  writing_ = true;
  write_started_ = parts_.probe->answered();
  response_ = std::move(*message->bytes);
  if (!message->end) return call_->StartWrite(&response_);
  finished_ = true;
  code_ = message->end->error_code();
  call_->StartWriteAndFinish(&response_, grpc::WriteOptions(), *message->end);
}

void GenerateStream::lose_client() {
  gone_ = true;
  if (request_) request_->give_up();
}

void GenerateStream::finish(const grpc::Status& status) {
  finished_ = true;
  code_ = status.error_code();
  if (!reading_) request_bytes_.Clear();
  call_->Finish(status);
}

void GenerateStream::refuse(const RefusedRequest& why) {
  finish(to_grpc_status(why, dialect_->field_path(why.error.field)));
}

void GenerateStream::log_end() const {
  log_request_end("grpc", dialect_->method(), static_cast<Code>(code_),
                  answer_ ? answer_->end() : nullptr, RunningClock::now() - begun_, request_.get());
}

grpc::Status GenerateStream::gone_status() const {
  if (slow_) return {grpc::StatusCode::CANCELLED, "the client did not read its stream"};
  if (call_->late()) return {grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed"};
  return {grpc::StatusCode::CANCELLED, "cancelled by the client"};
}

Deadline deadline_of(const grpc::CallbackServerContext& context) {
  const auto at = context.deadline();
  if (at == std::chrono::system_clock::time_point::max()) return Deadline::infinite();
  return Deadline::after_s(
      std::chrono::duration<double>(at - std::chrono::system_clock::now()).count());
}

}  // namespace shoal
