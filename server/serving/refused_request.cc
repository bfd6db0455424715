#include "server/serving/refused_request.h"

#include <cstring>

#include "models/tokenizer/unicode.h"

namespace shoal {

namespace {

/// gRPC's limit of 8 KiB for trailers holds for the message and its details together.
constexpr size_t kMaxMessageBytes = 1900;

/// How long a client should wait before a retry if nothing was measured: roughly the rest of
/// loading, the time until the ranks are tried again, the time until the queue moves or an idle
/// connection has made room, and the start of another server.
constexpr int kLoadingRetryMs = 2000;
constexpr int kRestartingRetryMs = 1000;
constexpr int kQueueFullRetryMs = 1000;
constexpr int kGoneRetryMs = 5000;

int usual_retry_ms(NotTaken why) {
  switch (why) {
    case NotTaken::kInvalid:
    case NotTaken::kIdInUse:
      return 0;
    case NotTaken::kLoading:
      return kLoadingRetryMs;
    case NotTaken::kRestarting:
      return kRestartingRetryMs;
    case NotTaken::kDraining:
    case NotTaken::kEngineLost:
      return kGoneRetryMs;
    case NotTaken::kNoMemory:
    case NotTaken::kQueueFull:
    case NotTaken::kShareExceeded:
    case NotTaken::kTooLate:
    case NotTaken::kQueuedTooLong:
    case NotTaken::kTooManyConnections:
      return kQueueFullRetryMs;
  }
  return 0;
}

std::string clip_utf8(std::string text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

RefusedRequest refuse(NotTaken why, RequestError error, int measured_ms) {
  return {why, std::move(error), measured_ms > 0 ? measured_ms : usual_retry_ms(why)};
}

RefusedRequest server_is_draining() {
  return refuse(
      NotTaken::kDraining,
      Status::error(Code::kUnavailable, "the server is shutting down and takes no new requests"));
}

std::string_view reason_of(NotTaken why) {
  switch (why) {
    case NotTaken::kInvalid:
      return "INVALID_REQUEST";
    case NotTaken::kIdInUse:
      return "DUPLICATE_REQUEST";
    case NotTaken::kLoading:
      return "MODEL_LOADING";
    case NotTaken::kRestarting:
      return "WORKERS_RESTARTING";
    case NotTaken::kDraining:
      return "DRAINING";
    case NotTaken::kEngineLost:
      return "WORKER_LOST";
    case NotTaken::kNoMemory:
      return "REQUEST_MEMORY_FULL";
    case NotTaken::kQueueFull:
      return "QUEUE_FULL";
    case NotTaken::kShareExceeded:
      return "CLIENT_SHARE_EXCEEDED";
    case NotTaken::kTooLate:
      return "WAIT_TOO_LONG";
    case NotTaken::kQueuedTooLong:
      return "QUEUE_TIMEOUT";
    case NotTaken::kTooManyConnections:
      return "TOO_MANY_CONNECTIONS";
  }
  return "";
}

std::optional<NotTaken> not_taken_of(std::string_view reason) {
  for (int i = 0; i < kNotTakenReasons; ++i) {
    if (reason_of(static_cast<NotTaken>(i)) == reason) return static_cast<NotTaken>(i);
  }
  return std::nullopt;
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

}  // namespace shoal
