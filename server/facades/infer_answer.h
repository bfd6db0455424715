#pragma once
#include <string>
#include <vector>

#include "server/facades/infer_request.h"
#include "server/grpc/dialect.h"

namespace shoal {

/// Writes an answer as a ModelInferResponse, or as ModelStreamInferResponses: one for each step, or
/// one for the whole answer.
class InferAnswer final : public CallAnswer {
 public:
  /// of_stream: the messages are those of ModelStreamInfer, whose requests fail by a message
  /// instead of the call's status.
  InferAnswer(InferRequest request, bool of_stream)
      : request_(std::move(request)), of_stream_(of_stream) {}

  std::optional<AnswerMessage> next(bool draining) override;

 private:
  void collect();
  void write_names(inference::ModelInferResponse* response) const;
  inference::ModelInferResponse response(bool last);
  AnswerMessage message(inference::ModelInferResponse response, bool last) const;

  const InferRequest request_;
  const bool of_stream_;
  bool final_left_ = false;  // only the empty response is left
  // The output that has come and has not been sent yet.
  std::string text_;
  std::vector<SampledToken> tokens_;
  double cumulative_logprob_ = 0;  // of all tokens so far
};

/// A response of ModelStreamInfer that says why the request with this id failed, and when to try
/// again if that is known.
grpc::ByteBuffer infer_error(const std::string& id, const std::string& model_name,
                             const grpc::Status& why);

}  // namespace shoal
