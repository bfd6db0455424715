#pragma once
#include <optional>
#include <span>
#include <string>

#include "server/grpc/wire_message.h"
#include "server/serving/generation_request.h"

#include "kserve/inference.pb.h"

namespace shoal {

/// The only version that the model has.
inline constexpr char kInferVersion[] = "1";

/// A tensor of the model, as ModelMetadata and ModelConfig list it.
struct InferTensorName {
  const char* name;
  const char* datatype;
  inference::DataType config_type;
  int64_t size;  ///< of its one dimension; -1: any
};
std::span<const InferTensorName> infer_inputs();
std::span<const InferTensorName> infer_outputs();

/// Which outputs an answer has.
struct InferOutputs {
  bool text = true;
  bool ids = false;
  bool finish_reason = false;
  bool logprobs = false;
  bool cumulative_logprob = false;
  bool num_input_tokens = false;
  bool num_output_tokens = false;
};

/// A ModelInferRequest in the form that does not depend on the protocol, and what its answer needs.
struct InferRequest {
  GenerationRequest request = {};
  std::string id = {};  ///< the client's; it need not be unique and names nothing here
  std::string model_name = {};
  InferOutputs outputs = {};
  bool stream = false;       ///< an answer for each step, instead of one
  std::string prefix = {};   ///< what comes before the answer's text: the prompt, or nothing
  bool empty_final = false;  ///< an empty response ends the stream
  int64_t timeout_us = 0;    ///< in which the first token must come; 0: any time
};

/// Reads a request. INVALID_ARGUMENT, with the field: the model has no such tensor or parameter,
/// two of them contradict each other, or the request asks for a feature that this server does not
/// have.
Result<InferRequest, WireRefusal> read_infer_request(inference::ModelInferRequest message);

}  // namespace shoal
