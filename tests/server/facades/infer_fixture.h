#pragma once
#include <memory>
#include <string>

#include "server/facades/facades.h"
#include "tests/server/grpc/grpc_fixture.h"

#include "kserve/inference.grpc.pb.h"

namespace shoal {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

inline ModelInferRequest::InferInputTensor* add_input(ModelInferRequest* request, const char* name,
                                                      const char* datatype, int64_t elements = 1) {
  ModelInferRequest::InferInputTensor* tensor = request->add_inputs();
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(elements);
  return tensor;
}

inline void add_flag(ModelInferRequest* request, const char* name, bool value) {
  add_input(request, name, "BOOL")->mutable_contents()->add_bool_contents(value);
}

/// A request with its values in the tensors' contents.
inline ModelInferRequest infer_request(const std::string& text, bool stream,
                                       int64_t max_tokens = 4) {
  ModelInferRequest request;
  add_input(&request, "text_input", "BYTES")->mutable_contents()->add_bytes_contents(text);
  add_flag(&request, "stream", stream);
  (*request.mutable_parameters())["max_tokens"].set_int64_param(max_tokens);
  (*request.mutable_parameters())["temperature"].set_double_param(0);
  return request;
}

/// The output's raw contents; "?" if there is no such output.
inline std::string output(const ModelInferResponse& response, const std::string& name) {
  for (int i = 0; i < response.outputs_size(); ++i)
    if (response.outputs(i).name() == name) return response.raw_output_contents(i);
  return "?";
}

/// The text of a BYTES output with one element.
inline std::string text_of(const ModelInferResponse& response,
                           const std::string& name = "text_output") {
  const std::string raw = output(response, name);
  return raw.size() >= 4 ? raw.substr(4) : raw;
}

inline uint32_t number_of(const ModelInferResponse& response, const std::string& name) {
  const std::string raw = output(response, name);
  return raw.size() == 4 ? static_cast<unsigned char>(raw[0]) : 9999;
}

class InferFixture : public GrpcFixture {
 protected:
  using Stream = grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>;

  void SetUp() override {
    start({.facades = all_facades()});
    stub_ = inference::GRPCInferenceService::NewStub(channel_);
  }

  grpc::Status infer(const ModelInferRequest& request, ModelInferResponse* response) {
    grpc::ClientContext context;
    return stub_->ModelInfer(&context, request, response);
  }

  void expect_refused(const ModelInferRequest& request, const std::string& field) {
    ModelInferResponse response;
    const grpc::Status status = infer(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(refusal_details(status).field, field) << status.error_message();
  }

  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;
};

}  // namespace shoal
