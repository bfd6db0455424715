#include "server/http/http_error.h"

#include <algorithm>

#include "runtime/base/log.h"

namespace shoal {

namespace {

constexpr int kTooManyRequests = 429, kServiceUnavailable = 503;

/// How long a client should wait if no measured rate says it.
constexpr int kUsualRetryMs = 1000;
constexpr int kMostRetryS = 60;

/// OpenAI's words for the kinds of errors.
const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case kTooManyRequests:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string in_quotes(const std::string& text) {
  return text.empty() ? "null" : cat('"', json_escape(text), '"');
}

int status_of_invalid(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return 400;
    case Code::kResourceExhausted:  // the tokenizer's working memory
      return 413;
    case Code::kNotFound:
      return 404;
    default:
      return 500;
  }
}

/// code: of the error, which matters if the request is wrong.
int status_of(NotTaken refused, Code code) {
  switch (refused) {
    case NotTaken::kInvalid:
      return status_of_invalid(code);
    case NotTaken::kIdInUse:
      return 409;
    case NotTaken::kLoading:
    case NotTaken::kRestarting:
    case NotTaken::kDraining:
    case NotTaken::kEngineLost:
    case NotTaken::kNoMemory:
    case NotTaken::kTooManyConnections:
      return kServiceUnavailable;
    case NotTaken::kQueueFull:
    case NotTaken::kShareExceeded:
    case NotTaken::kTooLate:
    case NotTaken::kQueuedTooLong:
      return kTooManyRequests;
  }
  return 500;
}

bool says_try_again(int status) {
  return status == kTooManyRequests || status == kServiceUnavailable;
}

std::string code_of(int status, NotTaken why) {
  return status == kTooManyRequests ? "rate_limit_exceeded" : std::string(reason_of(why));
}

HttpError with(int status, const Status& why, std::string code) {
  return {status, explain(why), "", std::move(code)};
}

}  // namespace

const char* http_field_name(RequestField field) {
  // Here a prompt may be text or ids, and has one name.
  return field == RequestField::kPromptIds ? "prompt" : field_name(field);
}

HttpError bad_field(std::string param, std::string message) {
  return {400, std::move(message), std::move(param), "INVALID_REQUEST"};
}

HttpError to_http_error(const RefusedRequest& refused) {
  const Status& why = refused.error.status;
  HttpError error{.status = status_of(refused.why, refused.code()),
                  .message = explain(why),
                  .param = http_field_name(refused.error.field),
                  .retry_ms = refused.retry_ms};
  error.code =
      refused.error.too_long ? "context_length_exceeded" : code_of(error.status, refused.why);
  return error;
}

bool is_retryable(std::string_view code) {
  for (int reason = 0; reason < kNotTakenReasons; ++reason) {
    const auto why = static_cast<NotTaken>(reason);
    const int status = status_of(why, Code::kOk);
    if (code_of(status, why) == code) return says_try_again(status);
  }
  return false;
}

HttpError to_http_error(const OutputEnd& end, bool draining) {
  if (end.refused) return to_http_error(*end.refused);
  if (end.status.ok()) return {500, "the request was aborted", "", "ABORTED"};
  const Code code = end.status.code();
  if (draining && (code == Code::kCancelled || code == Code::kUnavailable))
    return with(kServiceUnavailable, end.status, "DRAINING");
  switch (code) {
    case Code::kInvalidArgument:
      return with(400, end.status, "INVALID_REQUEST");
    case Code::kUnavailable:
    case Code::kAborted:
    case Code::kCancelled:
    case Code::kResourceExhausted:
      return with(kServiceUnavailable, end.status, "WORKER_LOST");
    case Code::kDataLoss:
      return with(500, end.status, "MODEL_CHANGED");
    default:
      return with(500, end.status, "INTERNAL");
  }
}

HttpError to_http_error(const RenderError& error) {
  const bool raised = error.kind == RenderError::Kind::kRaised;
  return {400, raised ? error.raised : explain(error.status),
          error.field.empty() ? "messages" : error.field,
          raised ? "TEMPLATE_REFUSES" : "INVALID_REQUEST"};
}

std::string error_json(const HttpError& error) {
  return cat("{\"error\":{\"message\":\"", json_escape(error.message), "\",\"type\":\"",
             type_of(error.status), "\",\"param\":", in_quotes(error.param),
             ",\"code\":", in_quotes(error.code), "}}");
}

HttpResponse error_response(const HttpError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (says_try_again(error.status)) {
    const int ms = error.retry_ms > 0 ? error.retry_ms : kUsualRetryMs;
    const int seconds = std::clamp((ms + 999) / 1000, 1, kMostRetryS);
    response.headers.emplace_back("Retry-After", cat(seconds));
  }
  return response;
}

}  // namespace shoal
