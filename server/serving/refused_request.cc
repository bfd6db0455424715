#include "server/serving/refused_request.h"

#include <cstddef>
#include <cstring>
#include <iterator>

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

struct Reason {
  NotTaken why;
  std::string_view name;
  Code code;
  int retry_ms;
};
constexpr Reason kReasons[] = {
    {NotTaken::kInvalid, "INVALID_REQUEST", Code::kInvalidArgument, 0},
    {NotTaken::kIdInUse, "DUPLICATE_REQUEST", Code::kAlreadyExists, 0},
    {NotTaken::kLoading, "MODEL_LOADING", Code::kUnavailable, kLoadingRetryMs},
    {NotTaken::kRestarting, "WORKERS_RESTARTING", Code::kUnavailable, kRestartingRetryMs},
    {NotTaken::kDraining, "DRAINING", Code::kUnavailable, kGoneRetryMs},
    {NotTaken::kEngineLost, "WORKER_LOST", Code::kUnavailable, kGoneRetryMs},
    {NotTaken::kNoMemory, "REQUEST_MEMORY_FULL", Code::kResourceExhausted, kQueueFullRetryMs},
    {NotTaken::kQueueFull, "QUEUE_FULL", Code::kResourceExhausted, kQueueFullRetryMs},
    {NotTaken::kShareExceeded, "CLIENT_SHARE_EXCEEDED", Code::kResourceExhausted,
     kQueueFullRetryMs},
    {NotTaken::kTooLate, "WAIT_TOO_LONG", Code::kResourceExhausted, kQueueFullRetryMs},
    {NotTaken::kQueuedTooLong, "QUEUE_TIMEOUT", Code::kResourceExhausted, kQueueFullRetryMs},
    {NotTaken::kTooManyConnections, "TOO_MANY_CONNECTIONS", Code::kResourceExhausted,
     kQueueFullRetryMs},
};
static_assert(std::size(kReasons) == kNotTakenReasons);

constexpr const Reason& row_of(NotTaken why) {
  return kReasons[static_cast<size_t>(why)];
}

constexpr bool in_order() {
  for (const Reason& row : kReasons)
    if (&row_of(row.why) != &row) return false;
  return true;
}
static_assert(in_order(), "the rows must be in the order of NotTaken");

std::string clip_utf8(std::string text) {
  if (text.size() <= kMaxMessageBytes) return text;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

RefusedRequest refuse(NotTaken why, RequestError error, int measured_ms) {
  return {why, std::move(error), measured_ms > 0 ? measured_ms : row_of(why).retry_ms};
}

RefusedRequest refuse(NotTaken why, std::string what, int measured_ms, const char* file, int line) {
  return refuse(why, Status::error(row_of(why).code, std::move(what), 0, file, line), measured_ms);
}

RefusedRequest server_is_draining() {
  return refuse(NotTaken::kDraining, "the server is shutting down and takes no new requests");
}

std::string_view reason_of(NotTaken why) {
  return row_of(why).name;
}

std::optional<NotTaken> not_taken_of(std::string_view reason) {
  for (const Reason& row : kReasons)
    if (row.name == reason) return row.why;
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
