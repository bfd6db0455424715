#include "server/facades/vllm_dialect.h"

#include <grpcpp/grpcpp.h>
#include <iterator>
#include <utility>

#include "server/grpc/grpc_status.h"
#include "server/grpc/wire_message.h"

#include "vllm/engine.pb.h"

namespace shoal {

namespace engine = vllm::grpc::engine;

namespace {

constexpr FieldPath kPaths[] = {
    {RequestField::kRequestId, "request_id"},
    {RequestField::kPrompt, "text"},
    {RequestField::kPromptIds, "tokenized.input_ids"},
    {RequestField::kMaxTokens, "sampling_params.max_tokens"},
    {RequestField::kTemperature, "sampling_params.temperature"},
    {RequestField::kTopP, "sampling_params.top_p"},
    {RequestField::kTopK, "sampling_params.top_k"},
    {RequestField::kMinP, "sampling_params.min_p"},
    {RequestField::kRepetitionPenalty, "sampling_params.repetition_penalty"},
    {RequestField::kPresencePenalty, "sampling_params.presence_penalty"},
    {RequestField::kFrequencyPenalty, "sampling_params.frequency_penalty"},
    {RequestField::kSeed, "sampling_params.seed"},
    {RequestField::kStop, "sampling_params.stop"},
    {RequestField::kStopTokenIds, "sampling_params.stop_token_ids"},
    {RequestField::kIgnoreEos, "sampling_params.ignore_eos"},
    {RequestField::kLogprobs, "sampling_params.logprobs"},
    {RequestField::kPriority, ""},  // there is no such field
};
static_assert(std::size(kPaths) == kRequestFields - 1, "every field has a path, but for kNone");

/// Refuses the features that this server does not have, and names the field.
WireRefusal check_features(const engine::SamplingParams& sampling) {
  const auto refuse = [](const char* field, const char* what) {
    return refuse_field(cat("sampling_params.", field), what);
  };
  if (sampling.n() > 1) return refuse("n", " must be 1: send one request for each sequence");
  if (sampling.min_tokens() > 0) return refuse("min_tokens", " is not supported: leave it out");
  if (sampling.has_prompt_logprobs()) return refuse("prompt_logprobs", " is not supported");
  if (sampling.logit_bias_size() > 0) return refuse("logit_bias", " is not supported");
  if (sampling.has_truncate_prompt_tokens())
    return refuse("truncate_prompt_tokens", " is not supported: send a prompt that fits");
  if (sampling.constraint_case() != engine::SamplingParams::CONSTRAINT_NOT_SET)
    return refuse("constraint",
                  ": structured output (a JSON schema, a grammar, a list of choices) is not "
                  "supported by this server");
  return {};
}

WireRefusal check_features(const engine::GenerateRequest& request) {
  if (request.has_mm_inputs() || request.has_media_refs() || request.extra_mm_inputs_size() > 0)
    return refuse_field("mm_inputs", " is not supported: this server has text models only");
  if (request.has_kv_transfer_params() || request.has_kv_transfer_params_json())
    return refuse_field("kv_transfer_params",
                        " is not supported: this server does prefill and decode itself");
  if (request.has_data_parallel_rank() && request.data_parallel_rank() != 0)
    return refuse_field("data_parallel_rank", " must be 0: this server has one");
  return check_features(request.sampling_params());
}

WireRefusal read_sampling(const engine::SamplingParams& sampling, GenerationRequest* request) {
  request->temperature = sampling.has_temperature() ? sampling.temperature() : 1;
  request->top_p = sampling.top_p() != 0 ? sampling.top_p() : 1;
  request->top_k = sampling.top_k();
  request->min_p = sampling.min_p();
  request->frequency_penalty = sampling.frequency_penalty();
  request->presence_penalty = sampling.presence_penalty();
  request->repetition_penalty =
      sampling.repetition_penalty() != 0 ? sampling.repetition_penalty() : 1;
  if (sampling.has_max_tokens()) request->max_tokens = sampling.max_tokens();
  request->stop = {sampling.stop().begin(), sampling.stop().end()};
  request->stop_token_ids = {sampling.stop_token_ids().begin(), sampling.stop_token_ids().end()};
  request->ignore_eos = sampling.ignore_eos();
  request->include_stop_in_output = sampling.include_stop_str_in_output();
  if (sampling.has_logprobs()) request->logprobs = sampling.logprobs();
  // In vLLM -1 means none.
  if (!sampling.has_seed() || sampling.seed() == -1) return {};
  if (sampling.seed() < -1)
    return refuse_field("sampling_params.seed",
                        cat(" must be at least 0, or -1 for none, not ", sampling.seed()));
  request->seed = static_cast<uint64_t>(sampling.seed());
  return {};
}

Result<GenerationRequest, WireRefusal> read_request(engine::GenerateRequest message) {
  SHOAL_RETURN_IF_ERROR(check_features(message));
  GenerationRequest request;
  switch (message.input_case()) {
    case engine::GenerateRequest::kText:
      request.prompt = std::move(*message.mutable_text());
      break;
    case engine::GenerateRequest::kTokenized:
      request.prompt_ids.emplace(message.tokenized().input_ids().begin(),
                                 message.tokenized().input_ids().end());
      break;
    case engine::GenerateRequest::INPUT_NOT_SET:
      return refuse_field("text", " or tokenized must be set");
  }
  SHOAL_RETURN_IF_ERROR(read_sampling(message.sampling_params(), &request));
  return request;
}

/// Adds the token to the lists. Returns about how many bytes longer the message is now.
size_t add_logprobs(const SampledToken& token, engine::OutputLogProbs* out) {
  constexpr size_t kEntryBytes = 10;
  out->add_token_logprobs(token.logprob);
  out->add_token_ids(static_cast<uint32_t>(token.token_id));
  if (token.top.empty()) return kEntryBytes;
  engine::TopLogProbs* top = out->add_top_logprobs();
  for (const TokenLogprob& candidate : token.top) {
    top->add_values(candidate.logprob);
    top->add_token_ids(static_cast<uint32_t>(candidate.token_id));
  }
  return kEntryBytes * (1 + token.top.size());
}

class VllmAnswer final : public CallAnswer {
 public:
  VllmAnswer(bool stream, bool logprobs) : stream_(stream), logprobs_(logprobs) {}

  std::optional<AnswerMessage> next(bool draining) override {
    if (!stream_) collect();
    if (std::optional<AnswerMessage> message = chunk()) return message;
    if (end() == nullptr) return std::nullopt;
    if (!end()->status.ok()) return AnswerMessage{std::nullopt, failure_status(*end(), draining)};
    engine::GenerateResponse response;
    write_complete(response.mutable_complete());
    return AnswerMessage{to_bytes(response), grpc::Status::OK};
  }

 private:
  void collect() {
    while (has_delta()) {
      for (const SampledToken& token : take_delta().tokens) {
        whole_.add_output_ids(static_cast<uint32_t>(token.token_id));
        if (logprobs_) add_logprobs(token, whole_.mutable_output_logprobs());
      }
    }
  }

  /// The tokens that have come; nullopt if there are none.
  std::optional<AnswerMessage> chunk() {
    engine::GenerateResponse response;
    engine::GenerateStreamChunk* chunk = response.mutable_chunk();
    chunk->set_prompt_tokens(static_cast<uint32_t>(prompt_tokens()));
    size_t bytes = 0;
    while (has_delta() && bytes < kFullBytes && chunk->token_ids_size() < kFullTokens) {
      for (const SampledToken& token : take_delta().tokens) {
        chunk->add_token_ids(static_cast<uint32_t>(token.token_id));
        if (logprobs_) bytes += add_logprobs(token, chunk->mutable_output_logprobs());
      }
    }
    if (chunk->token_ids_size() == 0) return std::nullopt;
    chunk->set_completion_tokens(static_cast<uint32_t>(chunk->token_ids_size()));
    return AnswerMessage{to_bytes(response), std::nullopt};
  }

  void write_complete(engine::GenerateComplete* complete) {
    complete->Swap(&whole_);
    complete->set_prompt_tokens(static_cast<uint32_t>(end()->prompt_tokens));
    complete->set_completion_tokens(static_cast<uint32_t>(end()->completion_tokens));
    const Finish& finish = end()->finish;
    switch (finish.reason) {
      case FinishReason::kStop:
        complete->set_finish_reason("stop");
        if (!end()->stop_text.empty())
          complete->set_matched_stop_str(end()->stop_text);
        else if (finish.stop_token_id >= 0 && !finish.stopped_by_eos)
          complete->set_matched_token_id(static_cast<uint32_t>(finish.stop_token_id));
        break;
      case FinishReason::kLength:
        complete->set_finish_reason("length");
        break;
      case FinishReason::kCancelled:
        complete->set_finish_reason("abort");
        break;
    }
  }

  const bool stream_, logprobs_;
  engine::GenerateComplete whole_;  // the answer so far, unless it is streamed
};

class VllmDialect final : public Dialect {
 public:
  std::string_view method() const override { return "VllmEngine/Generate"; }

  Result<IncomingRequest, grpc::Status> read(const ServingState& state,
                                             grpc::ByteBuffer* bytes) const override {
    engine::GenerateRequest message;
    SHOAL_RETURN_IF_ERROR(to_grpc_status(parse_message(bytes, wire_bounds(state), &message)));
    IncomingRequest incoming;
    incoming.id = message.request_id().empty() ? make_uuid() : message.request_id();
    const bool stream = message.stream();
    Result<GenerationRequest, WireRefusal> read = read_request(std::move(message));
    if (!read.ok()) return to_grpc_status(read.error());
    incoming.request = std::move(read).value();
    incoming.answer = std::make_unique<VllmAnswer>(stream, incoming.request.logprobs.has_value());
    SHOAL_RETURN_IF_ERROR(to_grpc_status(keep_whole(state, stream, &incoming)));
    return incoming;
  }

  std::string_view field_path(RequestField field) const override { return path_in(kPaths, field); }

 private:
  static WireRefusal keep_whole(const ServingState& state, bool stream, IncomingRequest* incoming) {
    const ServedModel* model = state.view().model;
    if (stream || model == nullptr) return {};
    incoming->kept_bytes = most_answer_bytes(incoming->request, *model);
    if (incoming->kept_bytes <= kMaxAnswerBytes) return {};
    return refuse_field("stream",
                        " must be true, because an answer that may become this long is not kept "
                        "whole; or ask for fewer tokens or logprobs");
  }
};

}  // namespace

std::unique_ptr<Dialect> make_vllm_dialect() {
  return std::make_unique<VllmDialect>();
}

}  // namespace shoal
