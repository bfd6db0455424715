// vllm.grpc.engine.VllmEngine over a real connection.

#include "server/facades/vllm_service.h"

#include <sys/stat.h>
#include <thread>

#include "server/facades/facades.h"
#include "tests/server/grpc/grpc_fixture.h"

#include "vllm/engine.grpc.pb.h"

namespace shoal {
namespace {

namespace engine = vllm::grpc::engine;

class VllmServiceTest : public GrpcFixture {
 protected:
  void SetUp() override {
    start({.facades = all_facades()});
    stub_ = engine::VllmEngine::NewStub(channel_);
  }

  static engine::GenerateRequest request(const std::string& text, bool stream,
                                         uint32_t max_tokens = 4) {
    engine::GenerateRequest request;
    request.set_text(text);
    request.set_stream(stream);
    request.mutable_sampling_params()->set_max_tokens(max_tokens);
    return request;
  }

  struct Answer {
    grpc::Status status;
    std::vector<engine::GenerateResponse> messages;
    const engine::GenerateComplete& complete() const { return messages.back().complete(); }
  };
  Answer ask(const engine::GenerateRequest& request) {
    grpc::ClientContext context;
    Answer answer;
    const auto reader = stub_->Generate(&context, request);
    for (engine::GenerateResponse message; reader->Read(&message);)
      answer.messages.push_back(message);
    answer.status = reader->Finish();
    return answer;
  }

  void expect_refused(const engine::GenerateRequest& request, const std::string& field) {
    const Answer answer = ask(request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(refusal_details(answer.status).field, field) << answer.status.error_message();
    EXPECT_TRUE(answer.messages.empty());
  }

  std::unique_ptr<engine::VllmEngine::Stub> stub_;
};

TEST_F(VllmServiceTest, StreamsIdsInChunksAndThenTheEnd) {
  engine::GenerateRequest asked = request("a", true);
  asked.mutable_sampling_params()->set_logprobs(2);
  const Answer answer = ask(asked);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::vector<uint32_t> ids;
  uint32_t counted = 0;
  for (const engine::GenerateResponse& message : answer.messages) {
    if (!message.has_chunk()) continue;
    ids.insert(ids.end(), message.chunk().token_ids().begin(), message.chunk().token_ids().end());
    counted += message.chunk().completion_tokens();
    EXPECT_EQ(message.chunk().prompt_tokens(), 2U);
    EXPECT_EQ(message.chunk().output_logprobs().token_ids_size(), message.chunk().token_ids_size());
  }
  EXPECT_EQ(ids, (std::vector<uint32_t>{68, 69, 70, 71}));
  EXPECT_EQ(counted, 4U);
  ASSERT_TRUE(answer.messages.back().has_complete());
  EXPECT_EQ(answer.complete().finish_reason(), "length");
  EXPECT_EQ(answer.complete().output_ids_size(), 0) << "they came in chunks";
  EXPECT_EQ(answer.complete().prompt_tokens(), 2U);
  EXPECT_EQ(answer.complete().completion_tokens(), 4U);
}

TEST_F(VllmServiceTest, SendsAWholeAnswerAtOnce) {
  engine::GenerateRequest asked = request("", false, 3);
  for (const uint32_t id : {67U, 68U}) asked.mutable_tokenized()->add_input_ids(id);
  const Answer answer = ask(asked);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.messages.size(), 1U);
  EXPECT_EQ(std::vector<uint32_t>(answer.complete().output_ids().begin(),
                                  answer.complete().output_ids().end()),
            (std::vector<uint32_t>{69, 70, 71}));
  EXPECT_EQ(answer.complete().prompt_tokens(), 2U);
  EXPECT_FALSE(answer.complete().has_output_logprobs());
}

TEST_F(VllmServiceTest, NamesWhatStoppedIt) {
  EXPECT_EQ(ask(request("x", false, 8)).complete().finish_reason(), "stop");
  EXPECT_EQ(ask(request("x", false, 8)).complete().matched_stop_case(),
            engine::GenerateComplete::MATCHED_STOP_NOT_SET)
      << "the end of sequence is no match";
  engine::GenerateRequest by_id = request("a", false, 8);
  by_id.mutable_sampling_params()->add_stop_token_ids(70);
  EXPECT_EQ(ask(by_id).complete().matched_token_id(), 70U);
  engine::GenerateRequest by_text = request("a", false, 8);
  by_text.mutable_sampling_params()->add_stop("de");
  EXPECT_EQ(ask(by_text).complete().matched_stop_str(), "de");
}

TEST_F(VllmServiceTest, TakesZeroForTheDefaultWhereTheProtocolDoes) {
  engine::GenerateRequest asked = request("a", false);
  engine::SamplingParams* sampling = asked.mutable_sampling_params();
  sampling->set_top_p(0);
  sampling->set_repetition_penalty(0);
  sampling->set_n(0);
  sampling->set_seed(-1);
  EXPECT_TRUE(ask(asked).status.ok());
  sampling->set_temperature(0);
  EXPECT_TRUE(ask(asked).status.ok()) << "greedy";
}

TEST_F(VllmServiceTest, RefusesWhatItCannotDoAndNamesTheField) {
  const auto with = [](auto change) {
    engine::GenerateRequest asked = request("a", true);
    change(&asked);
    return asked;
  };
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_n(2); }),
                 "sampling_params.n");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_json_schema("{}"); }),
                 "sampling_params.constraint");
  expect_refused(
      with([](auto* r) { (*r->mutable_sampling_params()->mutable_logit_bias())[1] = 1; }),
      "sampling_params.logit_bias");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_prompt_logprobs(0); }),
                 "sampling_params.prompt_logprobs");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_min_tokens(1); }),
                 "sampling_params.min_tokens");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_seed(-2); }),
                 "sampling_params.seed");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_temperature(-1); }),
                 "sampling_params.temperature");
  expect_refused(with([](auto* r) { r->mutable_sampling_params()->set_logprobs(-1); }),
                 "sampling_params.logprobs");
  expect_refused(with([](auto* r) { r->mutable_mm_inputs(); }), "mm_inputs");
  expect_refused(with([](auto* r) { r->set_kv_transfer_params_json("{}"); }), "kv_transfer_params");
  expect_refused(with([](auto* r) { r->set_data_parallel_rank(1); }), "data_parallel_rank");
  expect_refused(with([](auto* r) { r->clear_input(); }), "text");
  expect_refused(with([](auto* r) { r->mutable_tokenized()->add_input_ids(1 << 30); }),
                 "tokenized.input_ids");
}

TEST_F(VllmServiceTest, FailsWithTheStatusOfTheCall) {
  workers_.fail(Status::error(Code::kUnavailable, "planted"));
  const Answer answer = ask(request("a", true));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refusal_details(answer.status).reason, "WORKER_LOST");
}

TEST_F(VllmServiceTest, AbortEndsARequestAndPassesOverOthers) {
  workers_.hold();
  engine::GenerateRequest asked = request("a", false, 100);
  asked.set_request_id("mine");
  Answer answer;
  std::thread client([&] { answer = ask(asked); });
  ASSERT_TRUE(eventually([this] { return loop_->load().running == 1; }));
  engine::AbortRequest abort;
  abort.add_request_ids("nobody's");
  abort.add_request_ids("mine");
  grpc::ClientContext context;
  engine::AbortResponse response;
  EXPECT_TRUE(stub_->Abort(&context, abort, &response).ok());
  workers_.release();
  client.join();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.complete().finish_reason(), "abort");
  EXPECT_TRUE(eventually([this] { return idle() && loop_->load().used_kv_blocks == 0; }));
}

TEST_F(VllmServiceTest, DescribesModelServerAndLoad) {
  engine::GetModelInfoResponse model;
  grpc::ClientContext of_model;
  ASSERT_TRUE(stub_->GetModelInfo(&of_model, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "letters");
  EXPECT_EQ(model.max_context_length(), 256U);
  EXPECT_EQ(model.architectures(0), "LlamaForCausalLM");
  EXPECT_EQ(model.vocab_size(), static_cast<uint32_t>(model_->config.vocab_size));
  EXPECT_GT(model.eos_token_ids_size(), 0);

  engine::GetServerInfoResponse server;
  grpc::ClientContext of_server;
  ASSERT_TRUE(stub_->GetServerInfo(&of_server, {}, &server).ok());
  EXPECT_EQ(server.server_type(), "vllm-grpc");
  EXPECT_EQ(server.max_num_seqs(), 8);
  EXPECT_FALSE(server.is_paused());
  struct stat shm {};
  ASSERT_EQ(::stat("/dev/shm", &shm), 0);
  EXPECT_TRUE(server.shm_namespace_id().ends_with(":" + std::to_string(shm.st_dev)));

  engine::GetLoadsResponse loads;
  grpc::ClientContext of_loads;
  ASSERT_TRUE(stub_->GetLoads(&of_loads, {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 64 * 16);
  EXPECT_EQ(loads.loads(0).num_total_reqs(), 0);
}

TEST_F(VllmServiceTest, TurnsUnhealthyWithTheServer) {
  const auto health = [this] {
    engine::HealthCheckResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->HealthCheck(&context, {}, &response).ok());
    return response;
  };
  EXPECT_TRUE(health().healthy());
  server_->set_restarting(Status::error(Code::kAborted, "rank 1 was killed"));
  EXPECT_EQ(health().message(), "waiting for ranks");
  server_->set_restarting({});
  server_->set_stopping();
  EXPECT_FALSE(health().healthy());
  EXPECT_EQ(health().message(), "draining");
}

TEST_F(VllmServiceTest, SendsTheTokenizerInPieces) {
  Result<TokenizerArchive> made =
      make_tokenizer_archive(SHOAL_TEST_DATA "/oracle/llama3-gqa-tied-sharded");
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  model_->tokenizer_files = std::make_shared<const TokenizerArchive>(std::move(made).value());
  grpc::ClientContext context;
  const auto reader = stub_->GetTokenizer(&context, {});
  std::string zip, sha256;
  for (smg::grpc::common::GetTokenizerChunk chunk; reader->Read(&chunk);) {
    EXPECT_TRUE(sha256.empty()) << "only the last chunk has it";
    EXPECT_LE(chunk.data().size(), size_t{64} << 10);
    zip += chunk.data();
    sha256 = chunk.sha256();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(sha256, model_->tokenizer_files->sha256);
  EXPECT_EQ(zip, model_->tokenizer_files->zip);
}

TEST_F(VllmServiceTest, ReadsNoLargeRequestWhereNoPromptIs) {
  engine::AbortRequest abort;
  for (int i = 0; i < 100'000; ++i) abort.add_request_ids();
  grpc::ClientContext context;
  engine::AbortResponse response;
  const grpc::Status status = stub_->Abort(&context, abort, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("65536"), std::string::npos) << status.error_message();
}

}  // namespace
}  // namespace shoal
