#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/engine/request_error.h"
#include "server/grpc/byte_methods.h"
#include "server/intake/live_request.h"

namespace shoal {

/// One message to the client, or the end of the answer, or both.
struct AnswerMessage {
  std::optional<grpc::ByteBuffer> bytes;
  std::optional<grpc::Status> end;  ///< set: nothing comes after it
};

/// Writes what one request produces as the messages of one protocol. Not thread-safe.
class CallAnswer {
 public:
  virtual ~CallAnswer() = default;

  /// The request was accepted. Called once, before next(). The model outlives it.
  void begin(const ServedModel* model, int32_t prompt_tokens);
  void add(LiveRequest::Output output);
  /// The next message, or nullopt if there is nothing to say yet. `draining`: the server is
  /// shutting down, so it was the server and not the client that cancelled the request.
  virtual std::optional<AnswerMessage> next(bool draining) = 0;

  /// The end of the request, once it has come; otherwise nullptr.
  const OutputEnd* end() const { return end_ ? &*end_ : nullptr; }
  /// Why the request was evicted before anything was generated; otherwise nullptr.
  const RefusedRequest* refused() const;

 protected:
  const ServedModel& model() const { return *model_; }
  int32_t prompt_tokens() const { return prompt_tokens_; }
  bool has_delta() const { return !deltas_.empty(); }
  /// Removes what the oldest step has produced. Its text is at most 256 KiB. Precondition:
  /// has_delta().
  OutputDelta take_delta();

 private:
  const ServedModel* model_ = nullptr;
  int32_t prompt_tokens_ = 0;
  std::deque<OutputDelta> deltas_;
  std::optional<OutputEnd> end_;
};

/// A message is full when it has this many tokens or bytes. One more step adds little to it, unless
/// the vocabulary has pieces of many KiB. gRPC's clients refuse messages of more than 4 MiB.
inline constexpr int kFullTokens = 256;
inline constexpr size_t kFullBytes = size_t{512} << 10;

/// A request as it came over gRPC, in the form that does not depend on the protocol.
struct IncomingRequest {
  std::string id = {};  ///< the client's, or one that was made here
  GenerationRequest request = {};
  std::unique_ptr<CallAnswer> answer = nullptr;
  size_t kept_bytes = 0;  ///< about the most that is kept of the answer before it is sent
  /// From now; the request is refused if its first token is not likely to come in time.
  Deadline first_token = Deadline::infinite();
};

/// One protocol for generating text over gRPC.
class Dialect {
 public:
  virtual ~Dialect() = default;
  /// The method as the log names it.
  virtual std::string_view method() const = 0;
  /// Reads a request from its bytes, and clears them as soon as it can. INVALID_ARGUMENT: what
  /// parse_message() refuses, a feature that this server does not have, and fields that contradict
  /// each other; NOT_FOUND: another model.
  virtual Result<IncomingRequest, grpc::Status> read(const ServingState& state,
                                                     grpc::ByteBuffer* bytes) const = 0;
  /// The path in the protocol's message of a field that a refusal is about; "" for kNone.
  virtual std::string_view field_path(RequestField field) const = 0;
};

/// A field that does not depend on the protocol, and its path in the protocol's message.
using FieldPath = std::pair<RequestField, std::string_view>;
/// The path in this list; "" if it has none.
std::string_view path_in(std::span<const FieldPath> paths, RequestField field);

/// Whether the request was ended by a server that shuts down.
bool ended_by_drain(const OutputEnd& end, bool draining);
/// Why a request failed that had been accepted, with the reason that HTTP's errors give too. It
/// must not have ended well.
grpc::Status failure_status(const OutputEnd& end, bool draining);

}  // namespace shoal
