// ModelStreamInfer over a real connection.

#include "server/facades/infer_stream.h"

#include <map>
#include <set>
#include <thread>

#include "tests/server/facades/infer_fixture.h"

namespace shoal {
namespace {

class InferStreamTest : public InferFixture {};

TEST_F(InferStreamTest, RequestsOfOneStreamRunAtTheSameTime) {
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

TEST_F(InferStreamTest, AFailedRequestLeavesItsStreamOpen) {
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

TEST_F(InferStreamTest, ARefusedRequestIsToldWhenToTryAgain) {
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  ModelInferResponse none;
  const grpc::Status alone = infer(infer_request("a", false), &none);
  grpc::ClientContext context;
  const std::unique_ptr<Stream> stream = stub_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(infer_request("a", true)));
  ModelStreamInferResponse message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.error_message(), alone.error_message());
  const auto& parameters = message.infer_response().parameters();
  ASSERT_TRUE(parameters.contains("retry_after_ms"));
  EXPECT_EQ(parameters.at("retry_after_ms").int64_param(), refusal_details(alone).retry_ms);
  server_->set_restarting({});
  ModelInferRequest wrong = infer_request("a", true);
  wrong.set_model_name("another");
  ASSERT_TRUE(stream->Write(wrong));
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_FALSE(message.infer_response().parameters().contains("retry_after_ms"));
  context.TryCancel();
}

TEST_F(InferStreamTest, AMessageThatCannotBeReadIsAnsweredUnderItsId) {
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

TEST_F(InferStreamTest, AClientThatLeavesEndsAllItsRequests) {
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

TEST_F(InferStreamTest, AnIdleStreamHoldsNoRequestBackAndEndsWithTheServer) {
  grpc::ClientContext idle_context;
  const std::unique_ptr<Stream> idle_stream = stub_->ModelStreamInfer(&idle_context);
  ModelInferResponse response;
  EXPECT_TRUE(infer(infer_request("a", false), &response).ok());
  server_->shutdown(Deadline::after_ms(kGuardMs));
  ModelStreamInferResponse message;
  EXPECT_FALSE(idle_stream->Read(&message));
  EXPECT_FALSE(idle_stream->Finish().ok());
}

TEST_F(InferStreamTest, BoundsHowManyStreamsAreOpen) {
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

}  // namespace
}  // namespace shoal
