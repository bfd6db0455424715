#include "server/grpc/grpc_status.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "models/tokenizer/unicode.h"

#include "google_rpc.pb.h"

namespace shoal {

namespace {

// The message and the details share gRPC's limit of 8 KiB for trailers.
constexpr size_t kMaxMessageBytes = 1900;

/// How long a client should wait before a retry if nothing was measured: roughly the rest of
/// loading, the time until the ranks are tried again or the queue moves, and the start of another
/// server.
constexpr int kLoadingRetryMs = 2000;
constexpr int kRestartingRetryMs = 1000;
constexpr int kQueueFullRetryMs = 1000;
constexpr int kGoneRetryMs = 5000;

/// The paths in openengine.v1 of the fields that do not depend on the interface.
constexpr std::pair<RequestField, std::string_view> kPaths[] = {
    {RequestField::kRequestId, "request_id"},
    {RequestField::kPrompt, "prompt"},
    {RequestField::kPromptIds, "token_ids.ids"},
    {RequestField::kMaxTokens, "stopping.max_tokens"},
    {RequestField::kTemperature, "sampling.temperature"},
    {RequestField::kTopP, "sampling.top_p"},
    {RequestField::kTopK, "sampling.top_k"},
    {RequestField::kMinP, "sampling.min_p"},
    {RequestField::kRepetitionPenalty, "sampling.repetition_penalty"},
    {RequestField::kPresencePenalty, "sampling.presence_penalty"},
    {RequestField::kFrequencyPenalty, "sampling.frequency_penalty"},
    {RequestField::kSeed, "sampling.seed"},
    {RequestField::kStop, "stopping.conditions"},
    {RequestField::kStopTokenIds, "stopping.conditions"},
    {RequestField::kIgnoreEos, "stopping.ignore_eos"},
    {RequestField::kLogprobs, "response.output_candidates.top_n"},
    {RequestField::kPriority, "openengine-priority"},
};
static_assert(std::size(kPaths) == kRequestFields - 1, "every field has a path, but for kNone");

RefusalInfo info_of(NotTaken why) {
  switch (why) {
    case NotTaken::kInvalid:
      return {.reason = "INVALID_REQUEST"};
    case NotTaken::kIdInUse:
      return {.reason = "DUPLICATE_REQUEST"};
    case NotTaken::kLoading:
      return {.reason = "MODEL_LOADING", .retry_ms = kLoadingRetryMs};
    case NotTaken::kRestarting:
      return {.reason = "WORKERS_RESTARTING", .retry_ms = kRestartingRetryMs};
    case NotTaken::kDraining:
      return {.reason = "DRAINING", .retry_ms = kGoneRetryMs};
    case NotTaken::kEngineLost:
      return {.reason = "WORKER_LOST", .retry_ms = kGoneRetryMs};
    case NotTaken::kQueueFull:
      return {.reason = "QUEUE_FULL", .retry_ms = kQueueFullRetryMs};
    case NotTaken::kShareExceeded:
      return {.reason = "CLIENT_SHARE_EXCEEDED", .retry_ms = kQueueFullRetryMs};
    case NotTaken::kTooLate:
      return {.reason = "WAIT_TOO_LONG", .retry_ms = kQueueFullRetryMs};
    case NotTaken::kQueuedTooLong:
      return {.reason = "QUEUE_TIMEOUT", .retry_ms = kQueueFullRetryMs};
  }
  return {};
}

std::string clip_utf8(std::string text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

std::string_view field_path(RequestField field) {
  const auto* const found =
      std::find_if(std::begin(kPaths), std::end(kPaths),
                   [field](const auto& entry) { return entry.first == field; });
  return found == std::end(kPaths) ? std::string_view() : found->second;
}

std::string explain(const Status& status) {
  std::string text;
  for (const Cause& cause : status.causes()) {
    if (!text.empty()) text += "; because: ";
    text += cause.what;
    if (cause.os_error != 0) text += cat(": ", std::strerror(cause.os_error));
  }
  // protobuf's strings must be UTF-8, but a path in the message may hold other bytes.
  return clip_utf8(to_valid_utf8(text));
}

grpc::Status to_grpc_status(const Status& status, const RefusalInfo& info) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(explain(status));
  if (!info.reason.empty()) {
    google::rpc::ErrorInfo error;
    error.set_reason(std::string(info.reason));
    error.set_domain("shoal");
    wire.add_details()->PackFrom(error);
  }
  if (info.retry_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(info.retry_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(info.retry_ms % 1000 * 1'000'000);
    wire.add_details()->PackFrom(retry);
  }
  if (!info.field.empty()) {
    google::rpc::BadRequest bad;
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(std::string(info.field));
    violation->set_description(wire.message());
    wire.add_details()->PackFrom(bad);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), wire.message(),
                      wire.SerializeAsString());
}

grpc::Status to_grpc_status(const RefusedRequest& refused) {
  RefusalInfo info = info_of(refused.why);
  if (refused.retry_ms > 0) info.retry_ms = refused.retry_ms;
  info.field = field_path(refused.error.field);
  return to_grpc_status(refused.error.status, info);
}

}  // namespace shoal
