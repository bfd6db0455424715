#include "server/grpc/generate_stream.h"

#include <grpcpp/grpcpp.h>
#include <utility>

#include "runtime/base/log.h"
#include "server/grpc/connections.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

// A message is full when it has this much. What one more step adds to it is small, unless the
// vocabulary has pieces of many KiB.
constexpr int kFullTokens = 256;
constexpr size_t kFullBytes = size_t{512} << 10;
/// The text of one step is cut after this much. Text may be held back for long before it is known.
constexpr size_t kMaxTextBytes = size_t{256} << 10;

Deadline deadline_of(const grpc::CallbackServerContext& context) {
  const auto at = context.deadline();
  if (at == std::chrono::system_clock::time_point::max()) return Deadline::infinite();
  return Deadline::after_s(
      std::chrono::duration<double>(at - std::chrono::system_clock::now()).count());
}

/// Cuts off the beginning of *text, whole characters of at most kMaxTextBytes, and returns it.
std::string take_front(std::string* text) {
  size_t end = kMaxTextBytes;
  while ((static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80) --end;
  std::string front = text->substr(0, end);
  text->erase(0, end);
  return front;
}

}  // namespace

void PendingOutput::add(OutputDelta delta) {
  while (delta.text.size() > kMaxTextBytes)
    deltas_.push_back({std::exchange(delta.tokens, {}), take_front(&delta.text)});
  deltas_.push_back(std::move(delta));
}

PendingOutput::Next PendingOutput::next() const {
  if (!deltas_.empty()) return Next::kTokens;
  return end_ ? Next::kEnd : Next::kNothing;
}

void PendingOutput::write_tokens(const Tokenizer& tokenizer, const TokenDetail& detail,
                                 wire::GenerateResponse* response) {
  size_t bytes = 0;
  do {
    bytes += add_to_token_event(deltas_.front(), tokenizer, detail, response);
    deltas_.pop_front();
  } while (!deltas_.empty() && bytes < kFullBytes && response->token().tokens_size() < kFullTokens);
}

void PendingOutput::write_end(bool draining, wire::GenerateResponse* response) const {
  write_end_event(*end_, draining, response);
}

grpc::Status PendingOutput::end_status() const {
  if (end_->status.code() != Code::kDataLoss) return grpc::Status::OK;
  return to_grpc_status(end_->status, {.reason = "MODEL_CHANGED"});
}

const RefusedRequest* PendingOutput::refused() const {
  return end_ && end_->refused ? &*end_->refused : nullptr;
}

/// gRPC's side of one Generate call. gRPC owns it from the return of start() until OnDone, which it
/// calls once, as the last call.
class GenerateStream::Call final : public Reactor {
 public:
  Call(std::shared_ptr<GenerateStream> stream, grpc::CallbackServerContext* context)
      : stream_(std::move(stream)), context_(context) {}

  void OnReadDone(bool ok) override { stream_->read_done(ok); }
  void OnWriteDone(bool ok) override { stream_->written(ok); }
  void OnCancel() override { stream_->client_gone(); }
  void OnDone() override {
    stream_->call_done();
    delete this;
  }

  /// After this, the outstanding write fails and OnCancel is called.
  void cancel() { context_->TryCancel(); }
  bool late() const { return deadline_passed(*context_); }

 private:
  const std::shared_ptr<GenerateStream> stream_;
  grpc::CallbackServerContext* const context_;
};

GenerateStream::Reactor* GenerateStream::start(grpc::CallbackServerContext* context,
                                               int64_t priority) {
  Call* const call = new Call(shared_from_this(), context);
  const std::string client = address_of(context->peer());
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    priority_ = priority;
    origin_ = {client, deadline_of(*context)};
  }
  parts_.intake->enter(shared_from_this(), client);
  return call;
}

void GenerateStream::read() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  reading_ = true;
  call_->StartRead(&request_bytes_);
}

void GenerateStream::read_done(bool ok) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (finished_) return request_bytes_.Clear();
    if (!ok) {
      return finish(to_grpc_status(
          Status::error(Code::kInvalidArgument,
                        cat("no request came, or one of more than ", kMaxRequestBytes, " bytes")),
          {.reason = "INVALID_REQUEST"}));
    }
    bytes = request_bytes_.Length();
  }
  parts_.intake->arrived(*this, bytes);
}

void GenerateStream::turn_away(const RefusedRequest& why) {
  const std::lock_guard lock(mutex_);
  if (!finished_) finish(to_grpc_status(why));
}

/// Takes the request's bytes. Returns false if the call is over.
bool GenerateStream::prepare(grpc::ByteBuffer* bytes) {
  const std::lock_guard lock(mutex_);
  if (finished_) return false;
  bytes->Swap(&request_bytes_);
  return true;
}

void GenerateStream::work() {
  grpc::ByteBuffer bytes;
  if (!prepare(&bytes)) return;
  Result<IncomingRequest, grpc::Status> incoming = read_incoming(*parts_.state, &bytes);
  if (incoming.ok()) return submit(std::move(incoming).value());
  const std::lock_guard lock(mutex_);
  if (!finished_) finish(incoming.error());
}

/// Holds no lock while the prompt is tokenized and queued. Output may come before it is known here
/// that the request was taken, and the client may go at any time.
void GenerateStream::submit(IncomingRequest incoming) {
  RequestOrigin origin;
  {
    const std::lock_guard lock(mutex_);
    request_id_ = incoming.id;
    detail_ = incoming.detail;
    incoming.request.priority = priority_;
    origin = origin_;
    model_ = parts_.state->view().model;
  }
  const Result<ServingState::Taken, RefusedRequest> taken = parts_.state->submit(
      incoming.id, std::move(incoming.request), shared_from_this(), origin, &gone_);
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    done = done_;
    if (taken.ok()) {
      taken_ = *taken;
      if (gone_) taken_.loop->cancel(taken_.id);
    } else if (!finished_) {
      finish(to_grpc_status(taken.error()));
    }
  }
  if (!taken.ok()) return;
  parts_.intake->accepted(*this, taken->bytes);
  if (done) parts_.state->leave(incoming.id, this);
}

void GenerateStream::on_delta(OutputDelta delta) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  pending_.add(std::move(delta));
  pump();
}

void GenerateStream::on_end(OutputEnd end) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  pending_.add(std::move(end));
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
  std::string request_id;
  {
    const std::lock_guard lock(mutex_);
    call_ = nullptr;
    done_ = true;
    request_id = request_id_;
  }
  parts_.state->leave(request_id, this);
  parts_.intake->leave(*this);
}

void GenerateStream::drop_slow_reader(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  if (call_ == nullptr || !writing_ || slow_) return;
  if (parts_.pulse->answered() - write_started_ <= limit) return;
  slow_ = true;
  log_warning(cat("request ", request_id_, ": the client has not read for ", limit.count(),
                  " ms; cancelled"));
  call_->cancel();
}

/// Starts the next write if there is output and no write is outstanding. It may hold mutex_,
/// because gRPC calls reactors on its own threads, never inside StartWrite or Finish.
void GenerateStream::pump() {
  if (writing_ || finished_) return;
  if (gone_) return finish(gone_status());
  const PendingOutput::Next next = pending_.next();
  if (next == PendingOutput::Next::kNothing) return;
  if (const RefusedRequest* refused = pending_.refused()) {
    parts_.state->release_id(request_id_, this);
    return finish(to_grpc_status(*refused));
  }
  writing_ = true;
  write_started_ = parts_.pulse->answered();
  response_.Clear();
  response_.set_request_id(request_id_);
  if (next == PendingOutput::Next::kTokens) {
    pending_.write_tokens(model_->tokenizer, detail_, &response_);
    call_->StartWrite(&response_);
    return;
  }
  pending_.write_end(parts_.state->draining(), &response_);
  parts_.state->release_id(request_id_, this);
  finished_ = true;
  call_->StartWriteAndFinish(&response_, grpc::WriteOptions(), pending_.end_status());
}

void GenerateStream::lose_client() {
  gone_ = true;
  if (taken_.loop != nullptr) taken_.loop->cancel(taken_.id);
}

void GenerateStream::finish(const grpc::Status& status) {
  finished_ = true;
  if (!reading_) request_bytes_.Clear();
  call_->Finish(status);
}

grpc::Status GenerateStream::gone_status() const {
  if (slow_) return {grpc::StatusCode::CANCELLED, "the client did not read its stream"};
  if (call_->late()) return {grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline passed"};
  return {grpc::StatusCode::CANCELLED, "cancelled by the client"};
}

bool deadline_passed(const grpc::CallbackServerContext& context) {
  return context.deadline() <= std::chrono::system_clock::now();
}

}  // namespace shoal
