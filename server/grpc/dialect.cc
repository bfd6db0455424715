#include "server/grpc/dialect.h"

#include <algorithm>
#include <grpcpp/grpcpp.h>
#include <utility>

#include "server/grpc/grpc_status.h"

namespace shoal {

namespace {

/// The text of one step is cut after this much. Text may be held back for long before it is known.
constexpr size_t kMaxTextBytes = size_t{256} << 10;

/// Cuts off the beginning of *text, whole characters of at most kMaxTextBytes, and returns it.
std::string take_front(std::string* text) {
  size_t end = kMaxTextBytes;
  while ((static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80) --end;
  std::string front = text->substr(0, end);
  text->erase(0, end);
  return front;
}

}  // namespace

void CallAnswer::begin(const ServedModel* model, int32_t prompt_tokens) {
  model_ = model;
  prompt_tokens_ = prompt_tokens;
}

void CallAnswer::add(LiveRequest::Output output) {
  for (OutputDelta& delta : output.deltas) {
    while (delta.text.size() > kMaxTextBytes)
      deltas_.push_back({std::exchange(delta.tokens, {}), take_front(&delta.text)});
    deltas_.push_back(std::move(delta));
  }
  if (output.end) end_ = std::move(output.end);
}

OutputDelta CallAnswer::take_delta() {
  OutputDelta delta = std::move(deltas_.front());
  deltas_.pop_front();
  return delta;
}

const RefusedRequest* CallAnswer::refused() const {
  return end_ && end_->refused ? &*end_->refused : nullptr;
}

std::string_view path_in(std::span<const FieldPath> paths, RequestField field) {
  const auto found = std::find_if(paths.begin(), paths.end(),
                                  [field](const FieldPath& one) { return one.first == field; });
  return found == paths.end() ? std::string_view() : found->second;
}

bool ended_by_drain(const OutputEnd& end, bool draining) {
  const Code code = end.status.code();
  return draining && (code == Code::kCancelled || code == Code::kUnavailable);
}

grpc::Status failure_status(const OutputEnd& end, bool draining) {
  if (ended_by_drain(end, draining))
    return to_grpc_status(refuse(NotTaken::kDraining, explain(end.status)));
  switch (end.status.code()) {
    case Code::kInvalidArgument:
      return to_grpc_status(end.status, {.reason = "INVALID_REQUEST"});
    case Code::kUnavailable:
    case Code::kAborted:
    case Code::kCancelled:
    case Code::kResourceExhausted:
      return to_grpc_status(Status::error(Code::kUnavailable, explain(end.status)),
                            {.reason = "WORKER_LOST"});
    case Code::kDataLoss:
      return to_grpc_status(end.status, {.reason = "MODEL_CHANGED"});
    default:
      return to_grpc_status(Status::error(Code::kInternal, explain(end.status)),
                            {.reason = "INTERNAL"});
  }
}

}  // namespace shoal
