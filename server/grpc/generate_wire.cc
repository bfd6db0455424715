#include "server/grpc/generate_wire.h"

#include <limits>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/counted.h"
#include "server/grpc/dialect.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

/// Refuses the features that this server does not have, and names the field.
WireRefusal check_features(const wire::GenerateRequest& request) {
  const wire::SamplingParams& sampling = request.sampling();
  if (sampling.has_num_sequences() && sampling.num_sequences() != 1)
    return refuse_field("sampling.num_sequences", cat(" must be 1, not ", sampling.num_sequences(),
                                                      ": send one request for each sequence"));
  if (request.stopping().min_tokens() > 0)
    return refuse_field("stopping.min_tokens",
                        " is not supported: leave it out, or use ignore_eos with max_tokens");
  if (request.has_guided())
    return refuse_field("guided", " decoding is not supported by this server");
  if (request.media_size() > 0)
    return refuse_field("media", " is not supported: this server has text models only");
  if (!request.lora_name().empty())
    return refuse_field("lora_name", " must be empty: this server has no LoRA adapters");
  if (request.kv().has_session())
    return refuse_field("kv.session",
                        " is not supported: this server does prefill and decode itself");
  return {};
}

WireRefusal check_response_options(const wire::ResponseOptions& options) {
  if (options.return_prompt_logprobs())
    return refuse_field("response.return_prompt_logprobs", " is not supported");
  if (options.has_prompt_candidates())
    return refuse_field("response.prompt_candidates", " is not supported");
  if (options.has_prompt_logprob_start())
    return refuse_field("response.prompt_logprob_start",
                        " is not supported: there are no prompt logprobs");
  using Selection = wire::CandidateTokenSelection;
  switch (options.output_candidates().selection_case()) {
    case Selection::kTokenIds:
      return refuse_field("response.output_candidates.token_ids", " is not supported: use top_n");
    case Selection::kAll:
      return refuse_field("response.output_candidates.all", " is not supported: use top_n");
    case Selection::SELECTION_NOT_SET:
      if (options.has_output_candidates())
        return refuse_field("response.output_candidates", " must have a selection: use top_n");
      return {};
    case Selection::kTopN:
      return {};
  }
  return {};
}

WireRefusal read_stop_conditions(const wire::StoppingOptions& stopping,
                                 GenerationRequest* request) {
  if (stopping.conditions_size() > kMaxStopConditions)
    return refuse_field("stopping.conditions",
                        cat(" has ", counted(stopping.conditions_size(), "entry", "entries"),
                            "; at most ", kMaxStopConditions, " are allowed"));
  for (int i = 0; i < stopping.conditions_size(); ++i) {
    const wire::StopCondition& condition = stopping.conditions(i);
    const auto wrong = [i](const char* what) {
      return refuse_field(cat("stopping.conditions[", i, "]"), what);
    };
    switch (condition.condition_case()) {
      case wire::StopCondition::kStopText:
        if (condition.stop_text().empty()) return wrong(" stop_text must not be empty");
        request->stop.push_back(condition.stop_text());
        break;
      case wire::StopCondition::kStopTokenId:
        request->stop_token_ids.push_back(condition.stop_token_id());
        break;
      case wire::StopCondition::CONDITION_NOT_SET:
        return wrong(" must have stop_text or stop_token_id");
    }
  }
  return {};
}

void read_sampling(const wire::SamplingParams& sampling, GenerationRequest* request) {
  if (sampling.has_temperature()) request->temperature = sampling.temperature();
  if (sampling.has_top_p()) request->top_p = sampling.top_p();
  if (sampling.has_top_k()) request->top_k = sampling.top_k();
  if (sampling.has_min_p()) request->min_p = sampling.min_p();
  if (sampling.has_repetition_penalty())
    request->repetition_penalty = sampling.repetition_penalty();
  if (sampling.has_presence_penalty()) request->presence_penalty = sampling.presence_penalty();
  if (sampling.has_frequency_penalty()) request->frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_seed()) request->seed = sampling.seed();
}

/// Converts an id or a count to the 32 bits of the wire type.
Result<uint32_t, RequestError> to_wire_u32(int64_t value, RequestField field) {
  if (value < 0 || value > std::numeric_limits<uint32_t>::max())
    return invalid_field(field, cat(field_name(field), " must be in [0, ",
                                    std::numeric_limits<uint32_t>::max(), "], not ", value));
  return static_cast<uint32_t>(value);
}

RequestError write_sampling(const GenerationRequest& request, wire::SamplingParams* sampling) {
  if (request.temperature) sampling->set_temperature(*request.temperature);
  if (request.top_p) sampling->set_top_p(*request.top_p);
  if (request.top_k) {
    if (*request.top_k < std::numeric_limits<int32_t>::min() ||
        *request.top_k > std::numeric_limits<int32_t>::max())
      return invalid_field(RequestField::kTopK,
                           cat("top_k must fit 32 bits, not ", *request.top_k));
    sampling->set_top_k(static_cast<int32_t>(*request.top_k));
  }
  if (request.min_p) sampling->set_min_p(*request.min_p);
  if (request.repetition_penalty) sampling->set_repetition_penalty(*request.repetition_penalty);
  if (request.presence_penalty) sampling->set_presence_penalty(*request.presence_penalty);
  if (request.frequency_penalty) sampling->set_frequency_penalty(*request.frequency_penalty);
  if (request.seed) sampling->set_seed(*request.seed);
  return {};
}

RequestError write_stopping(const GenerationRequest& request, wire::StoppingOptions* stopping) {
  if (request.max_tokens) {
    SHOAL_ASSIGN_OR_RETURN(const uint32_t max_tokens,
                           to_wire_u32(*request.max_tokens, RequestField::kMaxTokens));
    stopping->set_max_tokens(max_tokens);
  }
  for (const std::string& text : request.stop)
    stopping->add_conditions()->set_stop_text(to_valid_utf8(text));
  for (const int64_t id : request.stop_token_ids) {
    SHOAL_ASSIGN_OR_RETURN(const uint32_t stop_id, to_wire_u32(id, RequestField::kStopTokenIds));
    stopping->add_conditions()->set_stop_token_id(stop_id);
  }
  if (request.ignore_eos) stopping->set_ignore_eos(true);
  if (request.include_stop_in_output) stopping->set_include_stop_in_output(true);
  return {};
}

struct WireError {
  wire::ErrorCode code;
  bool retryable;
};

WireError wire_error(const OutputEnd& end, bool draining) {
  if (ended_by_drain(end, draining)) return {wire::ERROR_CODE_DRAINING, true};
  switch (end.status.code()) {
    case Code::kInvalidArgument:
      return {wire::ERROR_CODE_INVALID_ARGUMENT, false};
    case Code::kUnimplemented:
      return {wire::ERROR_CODE_UNSUPPORTED_FEATURE, false};
    case Code::kResourceExhausted:
      return {wire::ERROR_CODE_OVERLOADED, true};
    case Code::kCancelled:
      return {wire::ERROR_CODE_CANCELLED, true};
    case Code::kUnavailable:  // workers lost: a retry may find new ones
    case Code::kAborted:
      return {wire::ERROR_CODE_INTERNAL, true};
    default:
      return {wire::ERROR_CODE_INTERNAL, false};
  }
}

void write_finished(const OutputEnd& end, wire::GenerationFinished* finished) {
  finished->set_output_index(0);
  switch (end.finish.reason) {
    case FinishReason::kStop:
      finished->set_reason(wire::FINISH_REASON_STOP);
      if (!end.stop_text.empty()) {
        finished->mutable_stop_match()->set_stop_text(end.stop_text);
      } else if (end.finish.stop_token_id >= 0) {
        const auto id = static_cast<uint32_t>(end.finish.stop_token_id);
        wire::StopMatch* match = finished->mutable_stop_match();
        end.finish.stopped_by_eos ? match->set_eos_token_id(id) : match->set_stop_token_id(id);
      }
      break;
    case FinishReason::kLength:
      finished->set_reason(wire::FINISH_REASON_LENGTH);
      break;
    case FinishReason::kCancelled:
      finished->set_reason(wire::FINISH_REASON_CANCELLED);
      finished->set_message("aborted");
      break;
  }
}

}  // namespace

Result<GenerationRequest, WireRefusal> read_generate_request(wire::GenerateRequest request) {
  SHOAL_RETURN_IF_ERROR(check_features(request));
  SHOAL_RETURN_IF_ERROR(check_response_options(request.response()));
  GenerationRequest out;
  switch (request.input_case()) {
    case wire::GenerateRequest::kPrompt:
      out.prompt = std::move(*request.mutable_prompt());
      break;
    case wire::GenerateRequest::kTokenIds:
      out.prompt_ids.emplace(request.token_ids().ids().begin(), request.token_ids().ids().end());
      break;
    case wire::GenerateRequest::INPUT_NOT_SET:
      return refuse_field("prompt", " or token_ids must be set");
  }
  read_sampling(request.sampling(), &out);
  const wire::StoppingOptions& stopping = request.stopping();
  if (stopping.has_max_tokens()) out.max_tokens = stopping.max_tokens();
  out.ignore_eos = stopping.ignore_eos();
  out.include_stop_in_output = stopping.include_stop_in_output();
  SHOAL_RETURN_IF_ERROR(read_stop_conditions(stopping, &out));
  const wire::ResponseOptions& response = request.response();
  if (response.return_output_logprobs()) out.logprobs = 0;
  if (response.has_output_candidates()) out.logprobs = response.output_candidates().top_n();
  return out;
}

TokenDetail token_detail(const wire::GenerateRequest& request) {
  const wire::ResponseOptions& response = request.response();
  return {.logprob = response.return_output_logprobs(),
          .candidates = response.has_output_candidates()};
}

Result<wire::GenerateRequest, RequestError> write_generate_request(
    const GenerationRequest& request) {
  wire::GenerateRequest out;
  if (request.prompt) out.set_prompt(to_valid_utf8(*request.prompt));
  if (request.prompt_ids) {
    for (const int64_t id : *request.prompt_ids) {
      SHOAL_ASSIGN_OR_RETURN(const uint32_t wire_id, to_wire_u32(id, RequestField::kPromptIds));
      out.mutable_token_ids()->add_ids(wire_id);
    }
  }
  SHOAL_RETURN_IF_ERROR(write_sampling(request, out.mutable_sampling()));
  SHOAL_RETURN_IF_ERROR(write_stopping(request, out.mutable_stopping()));
  if (request.logprobs) {
    SHOAL_ASSIGN_OR_RETURN(const uint32_t top_n,
                           to_wire_u32(*request.logprobs, RequestField::kLogprobs));
    out.mutable_response()->set_return_output_logprobs(true);
    out.mutable_response()->mutable_output_candidates()->set_top_n(top_n);
  }
  return out;
}

size_t add_to_token_event(const OutputDelta& delta, const Tokenizer& tokenizer,
                          const TokenDetail& detail, wire::GenerateResponse* response) {
  wire::TokenOutput* output = response->mutable_token();
  output->set_output_index(0);
  output->mutable_text()->append(delta.text);
  size_t bytes = delta.text.size();
  for (const SampledToken& token : delta.tokens) {
    wire::TokenInfo* info = output->add_tokens();
    info->set_token_id(static_cast<uint32_t>(token.token_id));
    info->set_token(std::string(tokenizer.piece(token.token_id)));
    if (detail.logprob) {
      info->set_logprob(token.logprob);
      info->set_rank(static_cast<uint32_t>(token.rank));
    }
    uint32_t rank = 0;
    for (const TokenLogprob& candidate : token.top) {
      if (!detail.candidates) break;
      wire::LogProb* entry = info->add_candidates();
      entry->set_token_id(static_cast<uint32_t>(candidate.token_id));
      entry->set_logprob(candidate.logprob);
      entry->set_token(std::string(tokenizer.piece(candidate.token_id)));
      entry->set_rank(++rank);
    }
    bytes += info->ByteSizeLong();
  }
  return bytes;
}

void write_end_event(const OutputEnd& end, bool draining, wire::GenerateResponse* response) {
  if (end.status.ok()) {
    write_finished(end, response->mutable_finished());
  } else {
    const WireError error = wire_error(end, draining);
    response->mutable_error()->set_code(error.code);
    response->mutable_error()->set_retryable(error.retryable);
    response->mutable_error()->set_message(explain(end.status));
  }
  wire::Usage* usage = response->mutable_usage();
  usage->set_prompt_tokens(static_cast<uint32_t>(end.prompt_tokens));
  usage->set_completion_tokens(static_cast<uint32_t>(end.completion_tokens));
  usage->set_total_tokens(static_cast<uint32_t>(end.prompt_tokens + end.completion_tokens));
}

}  // namespace shoal
