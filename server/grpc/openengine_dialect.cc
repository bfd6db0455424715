#include "server/grpc/openengine_dialect.h"

#include <grpcpp/grpcpp.h>
#include <iterator>
#include <utility>

#include "server/grpc/generate_wire.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/wire_message.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

/// The paths in GenerateRequest of the fields that do not depend on the interface.
constexpr FieldPath kPaths[] = {
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

class OpenengineAnswer final : public CallAnswer {
 public:
  OpenengineAnswer(std::string id, TokenDetail detail) : id_(std::move(id)), detail_(detail) {}

  std::optional<AnswerMessage> next(bool draining) override {
    wire::GenerateResponse response;
    response.set_request_id(id_);
    if (has_delta()) {
      size_t bytes = 0;
      do {
        bytes += add_to_token_event(take_delta(), model().tokenizer, detail_, &response);
      } while (has_delta() && bytes < kFullBytes && response.token().tokens_size() < kFullTokens);
      begun_ = true;
      return AnswerMessage{to_bytes(response), std::nullopt};
    }
    if (end() == nullptr) return std::nullopt;
    // Nothing has been said, so that a client may try another server at once.
    if (!begun_ && ended_by_drain(*end(), draining))
      return AnswerMessage{std::nullopt, failure_status(*end(), draining)};
    write_end_event(*end(), draining, &response);
    return AnswerMessage{to_bytes(response), call_status()};
  }

 private:
  /// It is OK even if the request failed, because openengine.v1 has an event for that. But the
  /// event has no code for DATA_LOSS, so the call ends with it.
  grpc::Status call_status() const {
    if (end()->status.code() != Code::kDataLoss) return grpc::Status::OK;
    return to_grpc_status(end()->status, {.reason = "MODEL_CHANGED"});
  }

  const std::string id_;
  const TokenDetail detail_;
  bool begun_ = false;  // an event has been written
};

class OpenengineDialect final : public Dialect {
 public:
  std::string_view method() const override { return "Generate"; }

  Result<IncomingRequest, grpc::Status> read(const ServingState& state,
                                             grpc::ByteBuffer* bytes) const override {
    wire::GenerateRequest message;
    SHOAL_RETURN_IF_ERROR(to_grpc_status(parse_message(bytes, wire_bounds(state), &message)));
    SHOAL_RETURN_IF_ERROR(
        to_grpc_status(state.check_model(message.model()), {.reason = "MODEL_NOT_FOUND"}));
    IncomingRequest incoming;
    incoming.id = message.request_id().empty() ? make_uuid() : message.request_id();
    incoming.answer = std::make_unique<OpenengineAnswer>(incoming.id, token_detail(message));
    Result<GenerationRequest, WireRefusal> read = read_generate_request(std::move(message));
    if (!read.ok()) return to_grpc_status(read.error());
    incoming.request = std::move(read).value();
    return incoming;
  }

  std::string_view field_path(RequestField field) const override { return path_in(kPaths, field); }
};

}  // namespace

std::unique_ptr<Dialect> make_openengine_dialect() {
  return std::make_unique<OpenengineDialect>();
}

}  // namespace shoal
