// inference.GRPCInferenceService over a real connection: calls with one answer.

#include "server/facades/infer_service.h"

#include "runtime/base/json.h"
#include "server/facades/infer_request.h"
#include "tests/server/facades/infer_fixture.h"

namespace shoal {
namespace {

class InferServiceTest : public InferFixture {};

TEST_F(InferServiceTest, AnswersWithThePromptInFrontUnlessItIsExcluded) {
  ModelInferResponse response;
  ModelInferRequest request = infer_request("a", false);
  request.set_id("7");
  ASSERT_TRUE(infer(request, &response).ok());
  EXPECT_EQ(response.id(), "7");
  EXPECT_EQ(response.model_name(), "letters");
  EXPECT_EQ(text_of(response), "abcde");
  add_flag(&request, "exclude_input_in_output", true);
  ASSERT_TRUE(infer(request, &response).ok());
  EXPECT_EQ(text_of(response), "bcde");
}

TEST_F(InferServiceTest, ReadsRawContentsAndIds) {
  ModelInferRequest request;
  add_input(&request, "input_ids", "INT32", 2);
  request.add_raw_input_contents(std::string("\x43\0\0\0\x44\0\0\0", 8));
  add_input(&request, "sampling_parameters", "BYTES");
  const std::string parameters = R"({"max_tokens": "3", "temperature": "0"})";
  std::string raw{static_cast<char>(parameters.size()), 0, 0, 0};
  request.add_raw_input_contents(raw + parameters);
  ModelInferResponse response;
  ASSERT_TRUE(infer(request, &response).ok());
  EXPECT_EQ(text_of(response), "cde") << "no prompt is put in front of ids";
  EXPECT_EQ(output(response, "output_ids"), std::string("\x45\0\0\0\x46\0\0\0\x47\0\0\0", 12));
}

TEST_F(InferServiceTest, GivesTheOutputsThatWereAskedFor) {
  ModelInferRequest request = infer_request("x", false, 8);
  for (const char* flag :
       {"return_finish_reason", "return_num_input_tokens", "return_num_output_tokens",
        "return_logprobs", "return_cumulative_logprob"})
    add_flag(&request, flag, true);
  ModelInferResponse response;
  ASSERT_TRUE(infer(request, &response).ok());
  EXPECT_EQ(text_of(response, "finish_reason"), "stop");
  EXPECT_EQ(number_of(response, "num_input_tokens"), 2U);
  EXPECT_EQ(number_of(response, "num_output_tokens"), 3U);
  EXPECT_TRUE(text_of(response, "logprobs").starts_with("[{\"91\":{\"logprob\":"));
  EXPECT_EQ(output(response, "cumulative_logprob").size(), 4U);
  ModelInferRequest only = infer_request("x", false, 8);
  only.add_outputs()->set_name("num_output_tokens");
  ASSERT_TRUE(infer(only, &response).ok());
  EXPECT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(number_of(response, "num_output_tokens"), 3U);
}

TEST_F(InferServiceTest, RefusesWhatItCannotReadAndNamesIt) {
  const auto with = [](auto change) {
    ModelInferRequest request = infer_request("a", false);
    change(&request);
    return request;
  };
  expect_refused(with([](auto* r) { add_flag(r, "streem", true); }), "inputs[streem]");
  expect_refused(with([](auto* r) { add_flag(r, "stream", false); }), "inputs[stream]");
  expect_refused(with([](auto* r) { r->mutable_inputs(0)->set_datatype("FP32"); }),
                 "inputs[text_input]");
  expect_refused(with([](auto* r) { r->mutable_inputs(0)->set_shape(0, 2); }),
                 "inputs[text_input]");
  expect_refused(with([](auto* r) { r->mutable_inputs(0)->add_shape(-1); }), "inputs[text_input]");
  expect_refused(with([](auto* r) {
                   r->mutable_inputs(0)->mutable_contents()->set_bytes_contents(0, "\xFF");
                 }),
                 "inputs[text_input]");
  expect_refused(with([](auto* r) { add_input(r, "input_ids", "INT32", 2); }), "inputs[input_ids]");
  expect_refused(with([](auto* r) {
                   add_input(r, "input_ids", "INT32")->mutable_contents()->add_int_contents(67);
                 }),
                 "inputs");
  expect_refused(with([](auto* r) { r->mutable_inputs()->DeleteSubrange(0, 1); }), "inputs");
  expect_refused(with([](auto* r) { r->add_raw_input_contents("x"); }), "raw_input_contents");
  expect_refused(with([](auto* r) {
                   for (const char* raw : {"\x09", "\x01"}) r->add_raw_input_contents(raw);
                 }),
                 "inputs[text_input]");
  expect_refused(with([](auto* r) { r->add_outputs()->set_name("text"); }), "outputs[text]");
  const auto parameter = [&](const char* name, const char* value) {
    return with([&](auto* r) { (*r->mutable_parameters())[name].set_string_param(value); });
  };
  expect_refused(parameter("temprature", "1"), "parameters.temprature");
  expect_refused(parameter("n", "2"), "parameters.n");
  expect_refused(parameter("prompt", "x"), "parameters.prompt");
  expect_refused(parameter("sequence_id", "x"), "parameters.sequence_id");
  expect_refused(parameter("priority", "first"), "parameters.priority");
  expect_refused(parameter("top_p", "7"), "top_p");
  expect_refused(with([](auto* r) { r->set_id(std::string(257, 'i')); }), "id");
  expect_refused(
      with([](auto* r) { (*r->mutable_parameters())["temperature"].set_double_param(0.0 / 0.0); }),
      "parameters.temperature");
  expect_refused(with([](auto* r) { (*r->mutable_parameters())["top_k"]; }), "parameters.top_k");
  ModelInferRequest stream = infer_request("a", true);
  expect_refused(stream, "inputs[stream]");
  // gRPC would replace a status of more than 8 KiB.
  const std::string long_name(7000, 'p');
  expect_refused(parameter(long_name.c_str(), "1"), cat("parameters.", long_name).substr(0, 256));
}

TEST_F(GrpcFixture, InferNamesTheModelAsItIsServed) {
  start({.facades = all_facades(),
         .state = std::make_shared<ServingState>(std::vector<std::string>{"first", "alias"})});
  const auto stub = inference::GRPCInferenceService::NewStub(channel_);
  for (const std::string name : {"", "alias"}) {
    grpc::ClientContext context;
    ModelInferRequest request = infer_request("a", false);
    request.set_model_name(name);
    ModelInferResponse response;
    EXPECT_TRUE(stub->ModelInfer(&context, request, &response).ok());
    EXPECT_EQ(response.model_name(), name.empty() ? "first" : name);
  }
}

TEST(InferDocs, NameEveryTensor) {
  const Result<std::string> page = read_file(SHOAL_SOURCE_DIR "/docs/grpc.md", 1 << 20);
  ASSERT_TRUE(page.ok()) << page.status().to_string();
  for (const auto& tensors : {infer_inputs(), infer_outputs()})
    for (const InferTensorName& tensor : tensors)
      EXPECT_NE(page->find(cat('`', tensor.name, '`')), std::string::npos) << tensor.name;
}

TEST_F(InferServiceTest, DescribesServerAndModel) {
  inference::ServerReadyResponse ready;
  grpc::ClientContext of_ready;
  ASSERT_TRUE(stub_->ServerReady(&of_ready, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());
  inference::ModelMetadataRequest asked;
  inference::ModelMetadataResponse metadata;
  grpc::ClientContext of_metadata;
  ASSERT_TRUE(stub_->ModelMetadata(&of_metadata, asked, &metadata).ok());
  EXPECT_EQ(metadata.name(), "letters");
  EXPECT_EQ(metadata.inputs(0).name(), "text_input");
  inference::ModelConfigRequest of_version;
  of_version.set_version("2");
  inference::ModelConfigResponse config;
  grpc::ClientContext wrong_version;
  EXPECT_EQ(stub_->ModelConfig(&wrong_version, of_version, &config).error_code(),
            grpc::StatusCode::NOT_FOUND);
  of_version.set_version("1");
  grpc::ClientContext of_config;
  ASSERT_TRUE(stub_->ModelConfig(&of_config, of_version, &config).ok());
  EXPECT_TRUE(config.config().model_transaction_policy().decoupled());
  EXPECT_EQ(config.config().input_size(), metadata.inputs_size());
  ModelInferResponse response;
  ASSERT_TRUE(infer(infer_request("a", false), &response).ok());
  inference::ModelStatisticsResponse statistics;
  grpc::ClientContext of_statistics;
  ASSERT_TRUE(stub_->ModelStatistics(&of_statistics, {}, &statistics).ok());
  EXPECT_EQ(statistics.model_stats(0).inference_count(), 1U);
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  grpc::ClientContext again;
  ASSERT_TRUE(stub_->ServerReady(&again, {}, &ready).ok());
  EXPECT_FALSE(ready.ready());
  inference::RepositoryIndexResponse index;
  grpc::ClientContext of_index;
  ASSERT_TRUE(stub_->RepositoryIndex(&of_index, {}, &index).ok());
  EXPECT_EQ(index.models(0).state(), "UNAVAILABLE");
}

}  // namespace
}  // namespace shoal
