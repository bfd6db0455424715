#include "server/facades/infer_request.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "models/tokenizer/unicode.h"
#include "runtime/base/json.h"
#include "server/facades/infer_tensors.h"
#include "server/http/api_request.h"

namespace shoal {

namespace {

using inference::ModelInferRequest;

// The names are those of Triton's backend for vLLM. `input_ids` and `output_ids` are those of its
// backend for TensorRT-LLM.
constexpr InferTensorName kInputs[] = {
    {"text_input", "BYTES", inference::TYPE_STRING, 1},
    {"input_ids", "INT32", inference::TYPE_INT32, -1},
    {"stream", "BOOL", inference::TYPE_BOOL, 1},
    {"sampling_parameters", "BYTES", inference::TYPE_STRING, 1},
    {"exclude_input_in_output", "BOOL", inference::TYPE_BOOL, 1},
    {"return_finish_reason", "BOOL", inference::TYPE_BOOL, 1},
    {"return_logprobs", "BOOL", inference::TYPE_BOOL, 1},
    {"return_cumulative_logprob", "BOOL", inference::TYPE_BOOL, 1},
    {"return_num_input_tokens", "BOOL", inference::TYPE_BOOL, 1},
    {"return_num_output_tokens", "BOOL", inference::TYPE_BOOL, 1},
};
constexpr InferTensorName kOutputs[] = {
    {"text_output", "BYTES", inference::TYPE_STRING, 1},
    {"output_ids", "INT32", inference::TYPE_INT32, -1},
    {"finish_reason", "BYTES", inference::TYPE_STRING, 1},
    {"logprobs", "BYTES", inference::TYPE_STRING, 1},
    {"cumulative_logprob", "FP32", inference::TYPE_FP32, 1},
    {"num_input_tokens", "UINT32", inference::TYPE_UINT32, 1},
    {"num_output_tokens", "UINT32", inference::TYPE_UINT32, 1},
};

constexpr size_t kMaxIdBytes = 256;

/// Fields of a body that these requests have in another place.
constexpr std::string_view kElsewhere[] = {"model",          "prompt",     "stream",
                                           "stream_options", "request_id", "return_token_ids",
                                           "echo",           "priority"};

/// Null for a parameter without a value, and for a number that JSON does not have.
Json value_of(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return parameter.bool_param();
    case inference::InferParameter::kInt64Param:
      return parameter.int64_param();
    case inference::InferParameter::kUint64Param:
      return parameter.uint64_param();
    case inference::InferParameter::kDoubleParam:
      if (!std::isfinite(parameter.double_param())) return nullptr;
      return parameter.double_param();
    case inference::InferParameter::kStringParam:
      return parameter.string_param();
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

/// A number, a boolean or a list that was written as a string, as Triton's backend for vLLM takes
/// them.
Json unquoted(std::string_view name, Json value) {
  if (!value.is_string() || name == "stop") return value;
  Result<Json> inner = parse_json(value.get_ref<const std::string&>(), name);
  return inner.ok() && !inner->is_string() ? std::move(inner).value() : value;
}

/// Reads the parameters that are Triton's own. Returns false if it is none of these.
Result<bool, WireRefusal> read_own_parameter(const std::string& name, const Json& value,
                                             InferRequest* out) {
  const auto wrong = [&](const char* what) { return refuse_field(cat("parameters.", name), what); };
  if (name == "triton_enable_empty_final_response") {
    if (!value.is_boolean()) return wrong(" must be a boolean");
    out->empty_final = value.get<bool>();
  } else if (name == "priority") {
    if (!value.is_number_integer() || value < 0) return wrong(" must be an integer of at least 0");
    const int64_t level = std::min<uint64_t>(value.get<uint64_t>(), INT32_MAX);
    // 1 goes first; 0 is the default, which goes after every level that is given.
    if (level > 0) out->request.priority = INT32_MIN + level;
  } else if (name == "timeout") {
    if (!value.is_number_integer() || value < 0)
      return wrong(" must be a number of microseconds of at least 0");
    out->timeout_us = static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
  } else if (name.starts_with("sequence_")) {
    return wrong(" is not supported: requests have no state");
  } else {
    return false;
  }
  return true;
}

/// Collects the sampling parameters from the tensor and from the request's own parameters, which
/// win.
Result<Json, WireRefusal> sampling_parameters(const ModelInferRequest& message,
                                              const std::optional<std::string>& text,
                                              InferRequest* out) {
  constexpr char kField[] = "inputs[sampling_parameters]";
  Json all = Json::object();
  if (text) {
    Result<Json> parsed = parse_json(*text, "it");
    if (!parsed.ok() || !parsed->is_object())
      return refuse_field(kField, parsed.ok() ? std::string(" must be a JSON object")
                                              : cat(": ", explain(parsed.status())));
    for (const auto& [name, value] : parsed->items()) all[name] = unquoted(name, value);
  }
  for (const auto& [name, parameter] : message.parameters()) {
    Json value = unquoted(name, value_of(parameter));
    if (value.is_null()) return refuse_field(cat("parameters.", name), " must have a finite value");
    SHOAL_ASSIGN_OR_RETURN(const bool own, read_own_parameter(name, value, out));
    if (!own) all[name] = std::move(value);
  }
  for (const std::string_view name : kElsewhere)
    if (all.contains(name))
      return refuse_field(cat("parameters.", name), " is not a sampling parameter");
  return all;
}

/// Reads the sampling parameters as a body of /v1/completions, which has the same fields.
Result<GenerationRequest, WireRefusal> read_sampling(Json parameters) {
  parameters["prompt"] = "-";
  Result<ApiRequest, HttpError> read =
      read_api_request(json_text(parameters), ApiRoute::kCompletions);
  if (!read.ok())
    return refuse_field(cat("parameters.", read.error().param), cat(": ", read.error().message));
  if (!read->ignored.empty())
    return refuse_field(cat("parameters.", to_valid_utf8(read->ignored.front())),
                        " is not known: the sampling parameters are the fields of "
                        "/v1/completions");
  GenerationRequest request = std::move(read->prompts.front());
  request.prompt.reset();
  return request;
}

WireRefusal read_flags(const InferTensors& tensors, InferOutputs* outputs) {
  const std::pair<const char*, bool*> flags[] = {
      {"return_finish_reason", &outputs->finish_reason},
      {"return_logprobs", &outputs->logprobs},
      {"return_cumulative_logprob", &outputs->cumulative_logprob},
      {"return_num_input_tokens", &outputs->num_input_tokens},
      {"return_num_output_tokens", &outputs->num_output_tokens},
  };
  for (const auto& [name, wanted] : flags) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<bool> value, tensors.flag(name));
    *wanted = value.value_or(false);
  }
  return {};
}

/// If the request lists outputs, the answer has those besides the ones that flags ask for.
WireRefusal read_outputs(const ModelInferRequest& message, InferOutputs* outputs) {
  if (message.outputs_size() == 0) return {};
  const std::pair<const char*, bool*> names[] = {
      {"text_output", &outputs->text},
      {"output_ids", &outputs->ids},
      {"finish_reason", &outputs->finish_reason},
      {"logprobs", &outputs->logprobs},
      {"cumulative_logprob", &outputs->cumulative_logprob},
      {"num_input_tokens", &outputs->num_input_tokens},
      {"num_output_tokens", &outputs->num_output_tokens},
  };
  outputs->text = false;
  outputs->ids = false;
  for (const ModelInferRequest::InferRequestedOutputTensor& output : message.outputs()) {
    const auto* const found =
        std::find_if(std::begin(names), std::end(names),
                     [&](const auto& one) { return output.name() == one.first; });
    if (found == std::end(names))
      return refuse_field(cat("outputs[", output.name(), "]"),
                          " is not an output of this model: ModelMetadata lists them");
    *found->second = true;
  }
  return {};
}

/// The prompt, and whether it stands before the answer's text.
WireRefusal read_prompt(const InferTensors& tensors, InferRequest* out) {
  SHOAL_ASSIGN_OR_RETURN(std::optional<std::string> text, tensors.text("text_input"));
  SHOAL_ASSIGN_OR_RETURN(std::optional<std::vector<int64_t>> ids, tensors.numbers("input_ids"));
  if (text.has_value() == ids.has_value())
    return refuse_field("inputs", ": exactly one of text_input and input_ids must be given");
  SHOAL_ASSIGN_OR_RETURN(const std::optional<bool> exclude,
                         tensors.flag("exclude_input_in_output"));
  if (out->stream && exclude == false)
    return refuse_field("inputs[exclude_input_in_output]", " must be true if stream is");
  if (text && !out->stream && !exclude.value_or(false)) out->prefix = *text;
  out->outputs.ids = ids.has_value();
  out->request.prompt = std::move(text);
  out->request.prompt_ids = std::move(ids);
  return {};
}

}  // namespace

std::span<const InferTensorName> infer_inputs() {
  return kInputs;
}

std::span<const InferTensorName> infer_outputs() {
  return kOutputs;
}

Result<InferRequest, WireRefusal> read_infer_request(ModelInferRequest message) {
  if (message.id().size() > kMaxIdBytes)
    return refuse_field("id", cat(" has ", message.id().size(), " bytes; at most ", kMaxIdBytes,
                                  " are returned with each answer"));
  const InferTensors tensors(message);
  std::vector<std::string_view> known;
  for (const InferTensorName& input : kInputs) known.emplace_back(input.name);
  SHOAL_RETURN_IF_ERROR(tensors.check_names(known));
  InferRequest out;
  out.id = message.id();
  out.model_name = message.model_name();
  SHOAL_ASSIGN_OR_RETURN(const std::optional<bool> stream, tensors.flag("stream"));
  out.stream = stream.value_or(false);
  SHOAL_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                         tensors.text("sampling_parameters"));
  SHOAL_ASSIGN_OR_RETURN(Json parameters, sampling_parameters(message, text, &out));
  const std::optional<int64_t> priority = out.request.priority;
  SHOAL_ASSIGN_OR_RETURN(out.request, read_sampling(std::move(parameters)));
  out.request.priority = priority;
  SHOAL_RETURN_IF_ERROR(read_prompt(tensors, &out));
  SHOAL_RETURN_IF_ERROR(read_flags(tensors, &out.outputs));
  SHOAL_RETURN_IF_ERROR(read_outputs(message, &out.outputs));
  const bool needs_logprobs = out.outputs.logprobs || out.outputs.cumulative_logprob;
  if (needs_logprobs && !out.request.logprobs) out.request.logprobs = 0;
  return out;
}

}  // namespace shoal
