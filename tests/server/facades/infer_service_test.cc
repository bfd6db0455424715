// inference.GRPCInferenceService over a real connection.

#include "server/facades/infer_service.h"

#include <map>
#include <set>
#include <thread>

#include "runtime/base/json.h"
#include "server/facades/facades.h"
#include "server/facades/infer_request.h"
#include "tests/server/grpc/grpc_fixture.h"

#include "kserve/inference.grpc.pb.h"

namespace shoal {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

ModelInferRequest::InferInputTensor* add_input(ModelInferRequest* request, const char* name,
                                               const char* datatype, int64_t elements = 1) {
  ModelInferRequest::InferInputTensor* tensor = request->add_inputs();
  tensor->set_name(name);
  tensor->set_datatype(datatype);
  tensor->add_shape(elements);
  return tensor;
}

void add_flag(ModelInferRequest* request, const char* name, bool value) {
  add_input(request, name, "BOOL")->mutable_contents()->add_bool_contents(value);
}

/// A request with its values in the tensors' contents.
ModelInferRequest infer_request(const std::string& text, bool stream, int64_t max_tokens = 4) {
  ModelInferRequest request;
  add_input(&request, "text_input", "BYTES")->mutable_contents()->add_bytes_contents(text);
  add_flag(&request, "stream", stream);
  (*request.mutable_parameters())["max_tokens"].set_int64_param(max_tokens);
  (*request.mutable_parameters())["temperature"].set_double_param(0);
  return request;
}

/// The output's raw contents; "?" if there is no such output.
std::string output(const ModelInferResponse& response, const std::string& name) {
  for (int i = 0; i < response.outputs_size(); ++i)
    if (response.outputs(i).name() == name) return response.raw_output_contents(i);
  return "?";
}

/// The text of a BYTES output with one element.
std::string text_of(const ModelInferResponse& response, const std::string& name = "text_output") {
  const std::string raw = output(response, name);
  return raw.size() >= 4 ? raw.substr(4) : raw;
}

uint32_t number_of(const ModelInferResponse& response, const std::string& name) {
  const std::string raw = output(response, name);
  return raw.size() == 4 ? static_cast<unsigned char>(raw[0]) : 9999;
}

class InferServiceTest : public GrpcFixture {
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

TEST_F(InferServiceTest, RequestsOfOneStreamRunAtTheSameTime) {
  workers_.hold();
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub_->ModelStreamInfer(&context);
  for (const char* letter : {"a", "h", "p"}) {
    ModelInferRequest request = infer_request(letter, true);
    request.set_id(letter);
    ASSERT_TRUE(stream->Write(request));
  }
  EXPECT_TRUE(eventually([this] { return loop_->load().running + loop_->load().waiting == 3; }));
  workers_.release();
  ASSERT_TRUE(stream->WritesDone());
  std::map<std::string, std::string> text;
  std::set<std::string> ended;
  for (ModelStreamInferResponse message; stream->Read(&message);) {
    ASSERT_EQ(message.error_message(), "");
    const ModelInferResponse& response = message.infer_response();
    EXPECT_FALSE(ended.contains(response.id())) << "nothing comes after the final response";
    text[response.id()] += text_of(response);
    if (response.parameters().at("triton_final_response").bool_param()) ended.insert(response.id());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(text,
            (std::map<std::string, std::string>{{"a", "bcde"}, {"h", "ijkl"}, {"p", "qrst"}}));
  EXPECT_EQ(ended.size(), 3U);
}

TEST_F(InferServiceTest, AFailedRequestLeavesItsStreamOpen) {
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub_->ModelStreamInfer(&context);
  ModelInferRequest bad = infer_request("a", true);
  bad.set_id("bad");
  bad.set_model_name("another");
  ASSERT_TRUE(stream->Write(bad));
  ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_NE(message.error_message(), "");
  EXPECT_EQ(message.infer_response().id(), "bad");
  ModelInferRequest good = infer_request("a", false);
  (*good.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(good));
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(text_of(message.infer_response()), "abcde") << "not streamed: one message has it all";
  EXPECT_FALSE(message.infer_response().parameters().at("triton_final_response").bool_param());
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.infer_response().outputs_size(), 0);
  EXPECT_TRUE(message.infer_response().parameters().at("triton_final_response").bool_param());
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(InferServiceTest, AMessageThatCannotBeReadIsAnsweredUnderItsId) {
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub_->ModelStreamInfer(&context);
  ModelInferRequest request;
  request.set_id("mine");
  request.set_model_name("letters");
  // A list that is longer than the model length.
  add_input(&request, "input_ids", "INT32", 300);
  for (int i = 0; i < 300; ++i) request.mutable_inputs(0)->mutable_contents()->add_int_contents(67);
  ASSERT_TRUE(stream->Write(request));
  ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_NE(message.error_message().find(" has more than 256 entries, the model length"),
            std::string::npos)
      << message.error_message();
  EXPECT_EQ(message.infer_response().id(), "mine");
  EXPECT_EQ(message.infer_response().model_name(), "letters");
  context.TryCancel();
}

TEST_F(InferServiceTest, AClientThatLeavesEndsAllItsRequests) {
  workers_.hold();
  {
    grpc::ClientContext context;
    const std::unique_ptr<Stream> stream = stub_->ModelStreamInfer(&context);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(stream->Write(infer_request("a", true, 200)));
    ASSERT_TRUE(eventually([this] { return loop_->load().running + loop_->load().waiting >= 8; }));
    context.TryCancel();
  }
  workers_.release();
  EXPECT_TRUE(eventually([this] { return idle() && loop_->load().used_kv_blocks == 0; }));
}

class LongInferTest : public GrpcFixture {};

/// The thread that tokenizes says why the request is not taken while the call is logged.
TEST_F(LongInferTest, AClientMayLeaveWhileItsTextIsTokenized) {
  Setup setup;
  setup.max_model_len = 200'000;
  setup.kv_blocks = 20'000;
  setup.facades = all_facades();
  start(setup);
  const auto stub = inference::GRPCInferenceService::NewStub(channel_);
  const TokenizingThread tokenizing;
  grpc::ClientContext context;
  const auto stream = stub->ModelStreamInfer(&context);
  // Merging one word of this length takes seconds, unless it is given up.
  ASSERT_TRUE(stream->Write(infer_request(std::string(size_t{8} << 20, 'a'), true)));
  EXPECT_TRUE(tokenizing.has_begun());
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->shutdown(Deadline::after_ms(0));
  EXPECT_TRUE(idle());
}

TEST_F(InferServiceTest, AnIdleStreamHoldsNoRequestBackAndEndsWithTheServer) {
  grpc::ClientContext idle_context;
  const std::unique_ptr<Stream> idle_stream = stub_->ModelStreamInfer(&idle_context);
  ModelInferResponse response;
  EXPECT_TRUE(infer(infer_request("a", false), &response).ok());
  server_->shutdown(Deadline::after_ms(kGuardMs));
  ModelStreamInferResponse message;
  EXPECT_FALSE(idle_stream->Read(&message));
  EXPECT_FALSE(idle_stream->Finish().ok());
}

TEST_F(InferServiceTest, BoundsHowManyStreamsAreOpen) {
  workers_.hold();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Stream>> streams;
  const auto open_one = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->ModelStreamInfer(contexts.back().get()));
    return streams.back().get();
  };
  const auto requests = [this] { return loop_->load().running + loop_->load().waiting; };
  Stream* const idle = open_one();
  for (int i = 1; i < 32; ++i) ASSERT_TRUE(open_one()->Write(infer_request("a", true, 1)));
  ASSERT_TRUE(eventually([&] { return requests() == 31; }));
  // The next one takes the place of the one that has no request.
  ASSERT_TRUE(open_one()->Write(infer_request("a", true, 1)));
  ModelStreamInferResponse message;
  EXPECT_FALSE(idle->Read(&message));
  EXPECT_EQ(refusal_details(idle->Finish()).reason, "IDLE_STREAM");
  ASSERT_TRUE(eventually([&] { return requests() == 32; }));
  Stream* const refused = open_one();
  EXPECT_FALSE(refused->Read(&message));
  const grpc::Status status = refused->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refusal_details(status).reason, "TOO_MANY_STREAMS");
  workers_.release();
  EXPECT_TRUE(streams[1]->Read(&message));
  EXPECT_EQ(message.error_message(), "");
  for (auto& context : contexts) context->TryCancel();
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
