#include "server/grpc/grpc_status.h"

#include <array>
#include <cstring>
#include <utility>

#include "models/tokenizer/unicode.h"

#include "google_rpc.pb.h"

namespace shoal {

namespace {

constexpr size_t kMaxMessageBytes =
    1900;  // trailers share gRPC's 8 KiB of metadata with the details

/// resolve_request() speaks of fields by the names that every front shares; in openengine.v1 they
/// stand here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kPaths = {{
    {"prompt", "prompt"},
    {"prompt_ids", "token_ids.ids"},
    {"temperature", "sampling.temperature"},
    {"top_p", "sampling.top_p"},
    {"top_k", "sampling.top_k"},
    {"min_p", "sampling.min_p"},
    {"repetition_penalty", "sampling.repetition_penalty"},
    {"presence_penalty", "sampling.presence_penalty"},
    {"frequency_penalty", "sampling.frequency_penalty"},
    {"seed", "sampling.seed"},
    {"max_tokens", "stopping.max_tokens"},
    {"stop", "stopping.conditions"},
    {"stop_token_ids", "stopping.conditions"},
    {"ignore_eos", "stopping.ignore_eos"},
    {"logprobs", "response.output_candidates.top_n"},
    {"request_id", "request_id"},
}};

std::string clip_utf8(std::string text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

std::string field_path(std::string_view message) {
  if (message.starts_with("the prompt"))
    return "prompt";  // its length or its text, whichever way it came
  const std::string_view word = message.substr(0, message.find_first_of(" :=["));
  for (const auto& [name, path] : kPaths)
    if (word == name) return std::string(path);
  for (const std::string_view prefix :
       {"sampling.", "stopping.", "response.", "kv.", "guided", "media", "lora_name"})
    if (word.starts_with(prefix))
      return std::string(message.substr(0, message.find_first_of(" :=")));
  return {};
}

std::string explain(const Status& status) {
  std::string text;
  for (const Cause& cause : status.causes()) {
    if (!text.empty()) text += "; because: ";
    text += cause.what;
    if (cause.os_error != 0) text += cat(": ", std::strerror(cause.os_error));
  }
  return clip_utf8(
      to_valid_utf8(text));  // a path in it may be no UTF-8, which protobuf's strings must be
}

grpc::Status to_grpc_status(const Status& status, std::string_view reason, int retry_ms) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(explain(status));
  if (!reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(std::string(reason));
    info.set_domain("shoal");
    wire.add_details()->PackFrom(info);
  }
  if (retry_ms > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(retry_ms % 1000 * 1'000'000);
    wire.add_details()->PackFrom(retry);
  }
  const std::string field =
      status.code() == Code::kInvalidArgument ? field_path(status.message()) : std::string();
  if (!field.empty()) {
    google::rpc::BadRequest bad;
    google::rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
    violation->set_field(field);
    violation->set_description(wire.message());
    wire.add_details()->PackFrom(bad);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), wire.message(),
                      wire.SerializeAsString());
}

}  // namespace shoal
