#include "server/facades/infer_answer.h"

#include <grpcpp/grpcpp.h>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "server/facades/infer_tensors.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace {

constexpr char kFinal[] = "triton_final_response";

/// As Triton's backend for vLLM writes it: for each token an object from ids to their logprobs, in
/// which the token itself comes first.
std::string logprobs_json(const std::vector<SampledToken>& tokens, const Tokenizer& tokenizer) {
  const auto entry = [&](int32_t id, float logprob, int rank) {
    return cat('"', id, "\":{\"logprob\":", json_float(logprob), ",\"rank\":", rank,
               ",\"decoded_token\":\"", json_escape(tokenizer.decode(std::vector{id}, false)),
               "\"}");
  };
  std::string json = "[";
  for (const SampledToken& token : tokens) {
    if (json.size() > 1) json += ',';
    json += '{' + entry(token.token_id, token.logprob, token.rank);
    int rank = 0;
    for (const TokenLogprob& candidate : token.top) {
      ++rank;
      if (candidate.token_id != token.token_id)
        json += ',' + entry(candidate.token_id, candidate.logprob, rank);
    }
    json += '}';
  }
  return json + ']';
}

const char* reason_name(const OutputEnd* end) {
  if (end == nullptr) return "None";
  switch (end->finish.reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      break;
  }
  return "abort";
}

}  // namespace

grpc::ByteBuffer infer_error(const std::string& id, const std::string& model_name,
                             const grpc::Status& why) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(why.error_message());
  inference::ModelInferResponse* const failed = response.mutable_infer_response();
  failed->set_id(id);
  failed->set_model_name(model_name);
  (*failed->mutable_parameters())[kFinal].set_bool_param(true);
  if (const int64_t ms = retry_ms_of(why); ms > 0)
    (*failed->mutable_parameters())["retry_after_ms"].set_int64_param(ms);
  return to_bytes(response);
}

/// Takes what has come, in a stream at most what one message may hold.
void InferAnswer::collect() {
  while (has_delta() && (!request_.stream ||
                         (text_.size() < kFullBytes && tokens_.size() < size_t{kFullTokens}))) {
    OutputDelta delta = take_delta();
    text_ += delta.text;
    for (SampledToken& token : delta.tokens) {
      cumulative_logprob_ += token.logprob;
      tokens_.push_back(std::move(token));
    }
  }
}

void InferAnswer::write_names(inference::ModelInferResponse* response) const {
  response->set_model_name(request_.model_name);
  response->set_model_version(kInferVersion);
  response->set_id(request_.id);
}

inference::ModelInferResponse InferAnswer::response(bool last) {
  inference::ModelInferResponse out;
  write_names(&out);
  const InferOutputs& wanted = request_.outputs;
  const std::string text = request_.prefix + std::exchange(text_, {});
  const std::vector<SampledToken> tokens = std::exchange(tokens_, {});
  if (wanted.text) add_bytes_output("text_output", text, &out);
  if (wanted.ids) {
    std::vector<int32_t> ids;
    for (const SampledToken& token : tokens) ids.push_back(token.token_id);
    add_int32_output("output_ids", ids, &out);
  }
  if (wanted.finish_reason)
    add_bytes_output("finish_reason", reason_name(last ? end() : nullptr), &out);
  if (wanted.logprobs) add_bytes_output("logprobs", logprobs_json(tokens, model().tokenizer), &out);
  if (wanted.cumulative_logprob)
    add_fp32_output("cumulative_logprob", static_cast<float>(cumulative_logprob_), &out);
  if (wanted.num_input_tokens)
    add_uint32_output("num_input_tokens", static_cast<uint32_t>(prompt_tokens()), &out);
  if (wanted.num_output_tokens)
    add_uint32_output("num_output_tokens", static_cast<uint32_t>(tokens.size()), &out);
  return out;
}

AnswerMessage InferAnswer::message(inference::ModelInferResponse response, bool last) const {
  AnswerMessage out;
  if (last) out.end = grpc::Status::OK;
  if (!of_stream_) {
    out.bytes = to_bytes(response);
    return out;
  }
  (*response.mutable_parameters())[kFinal].set_bool_param(last);
  inference::ModelStreamInferResponse wrapped;
  wrapped.mutable_infer_response()->Swap(&response);
  out.bytes = to_bytes(wrapped);
  return out;
}

std::optional<AnswerMessage> InferAnswer::next(bool draining) {
  if (final_left_) {
    inference::ModelInferResponse empty;
    write_names(&empty);
    return message(std::move(empty), true);
  }
  collect();
  const bool ended = end() != nullptr && !has_delta();
  const bool pending = request_.stream && !(text_.empty() && tokens_.empty());
  if (!ended && !pending) return std::nullopt;
  const bool failed = ended && !end()->status.ok();
  if (failed && pending) return message(response(false), false);
  if (failed) {
    grpc::Status status = failure_status(*end(), draining);
    if (!of_stream_) return AnswerMessage{std::nullopt, std::move(status)};
    return AnswerMessage{infer_error(request_.id, request_.model_name, status), grpc::Status::OK};
  }
  inference::ModelInferResponse out = response(ended);
  // Triton's clients ask for the empty response because its models may not know which is the last.
  final_left_ = ended && of_stream_ && request_.empty_final;
  return message(std::move(out), ended && !final_left_);
}

}  // namespace shoal
