// Generate over a real connection: the events for a good request, and the errors for a bad one.

#include <grpcpp/generic/generic_stub.h>
#include <thread>

#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

namespace wire = openengine::v1;

class GrpcGenerate : public GrpcFixture {
 protected:
  void SetUp() override { start({}); }
};

TEST_F(GrpcGenerate, StreamsEveryTokenOnceAndTextThatJoins) {
  const StreamRecord record = generate(text_request("a", 5));
  ASSERT_TRUE(record.status.ok()) << record.status.error_message();
  EXPECT_EQ(record.ids(), (std::vector<uint32_t>{68, 69, 70, 71, 72}));
  EXPECT_EQ(record.text(), "bcdef");
  EXPECT_EQ(record.finished().reason(), wire::FINISH_REASON_LENGTH);
  EXPECT_FALSE(record.finished().has_stop_match());
  std::string request_id;
  for (const wire::GenerateResponse& event : record.events) {
    const bool last = &event == &record.events.back();
    EXPECT_EQ(event.has_usage(), last);
    EXPECT_EQ(event.has_finished(), last);
    EXPECT_EQ(event.has_token(), !last);
    EXPECT_TRUE(last ? event.finished().has_output_index() : event.token().has_output_index());
    if (request_id.empty()) request_id = event.request_id();
    EXPECT_EQ(event.request_id(), request_id);
  }
  EXPECT_EQ(request_id.size(), 36U) << "a UUID when the client gives none";
  EXPECT_EQ(record.events.back().usage().prompt_tokens(), 2U) << "BOS and the letter";
  EXPECT_EQ(record.events.back().usage().completion_tokens(), 5U);
  EXPECT_EQ(record.events.back().usage().total_tokens(), 7U);
}

TEST_F(GrpcGenerate, TakesTokenIdsAsTheyAreAndEchoesTheRequestId) {
  wire::GenerateRequest request;
  request.set_request_id("mine");
  request.set_model("letters");
  for (const uint32_t id : {67U, 68U, 69U}) request.mutable_token_ids()->add_ids(id);
  request.mutable_stopping()->set_max_tokens(2);
  const StreamRecord record = generate(request);
  ASSERT_TRUE(record.status.ok()) << record.status.error_message();
  EXPECT_EQ(record.text(), "de");
  EXPECT_EQ(record.events.front().request_id(), "mine");
  EXPECT_EQ(record.events.back().usage().prompt_tokens(), 3U) << "no BOS is added to ids";
  EXPECT_TRUE(generate(request).status.ok()) << "the id is free again once its stream has ended";
}

TEST_F(GrpcGenerate, SendsEachStepWithoutWaitingForTheNext) {
  workers_.hold();
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, text_request("a", 3));
  wire::GenerateResponse event;
  for (uint32_t id = 68; id < 71; ++id) {
    workers_.allow_one_step();
    ASSERT_TRUE(reader->Read(&event));
    ASSERT_EQ(event.token().tokens_size(), 1);
    EXPECT_EQ(event.token().tokens(0).token_id(), id);
    EXPECT_EQ(event.token().tokens(0).token(), event.token().text());
  }
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_finished());
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcGenerate, NamesWhatStoppedIt) {
  const StreamRecord eos = generate(text_request("x", 8));
  EXPECT_EQ(eos.ids(), (std::vector<uint32_t>{91, 92, 1})) << "the EOS is among the tokens";
  EXPECT_EQ(eos.text(), "yz") << "and not in the text";
  EXPECT_EQ(eos.finished().reason(), wire::FINISH_REASON_STOP);
  EXPECT_EQ(eos.finished().stop_match().eos_token_id(), 1U);
  EXPECT_EQ(eos.events.back().usage().completion_tokens(), 3U);

  wire::GenerateRequest by_text = text_request("a", 20);
  by_text.mutable_stopping()->add_conditions()->set_stop_text("ef");
  const StreamRecord text = generate(by_text);
  EXPECT_EQ(text.text(), "bcd");
  EXPECT_EQ(text.ids().size(), 5U);
  EXPECT_EQ(text.finished().stop_match().stop_text(), "ef");
  by_text.mutable_stopping()->set_include_stop_in_output(true);
  EXPECT_EQ(generate(by_text).text(), "bcdef");

  wire::GenerateRequest by_id = text_request("a", 20);
  by_id.mutable_stopping()->add_conditions()->set_stop_token_id(70);
  const StreamRecord id = generate(by_id);
  EXPECT_EQ(id.ids(), (std::vector<uint32_t>{68, 69, 70}));
  EXPECT_EQ(id.finished().stop_match().stop_token_id(), 70U);

  wire::GenerateRequest past_eos = text_request("x", 4);
  past_eos.mutable_stopping()->set_ignore_eos(true);
  const StreamRecord ignored = generate(past_eos);
  EXPECT_EQ(ignored.text(), "yza");
  EXPECT_EQ(ignored.finished().reason(), wire::FINISH_REASON_LENGTH);
}

TEST_F(GrpcGenerate, GivesLogprobsOnlyToThoseWhoAsk) {
  const StreamRecord plain = generate(text_request("a", 1));
  EXPECT_FALSE(plain.events[0].token().tokens(0).has_logprob());
  EXPECT_FALSE(plain.events[0].token().tokens(0).has_rank());
  EXPECT_EQ(plain.events[0].token().tokens(0).candidates_size(), 0);

  wire::GenerateRequest request = text_request("a", 1);
  request.mutable_response()->set_return_output_logprobs(true);
  const wire::TokenInfo own = generate(request).events[0].token().tokens(0);
  EXPECT_EQ(own.logprob(), -0.5);
  EXPECT_EQ(own.rank(), 1U);
  EXPECT_EQ(own.candidates_size(), 0);

  request.mutable_response()->mutable_output_candidates()->set_top_n(3);
  const wire::TokenInfo top = generate(request).events[0].token().tokens(0);
  ASSERT_EQ(top.candidates_size(), 3);
  EXPECT_EQ(top.candidates(2).token_id(), 70U);
  EXPECT_EQ(top.candidates(2).token(), "d");
  EXPECT_EQ(top.candidates(2).logprob(), -2.5);
  EXPECT_EQ(top.candidates(2).rank(), 3U);
}

TEST_F(GrpcGenerate, LosesNoTokenWhenStepsOutrunWrites) {
  wire::GenerateRequest request = text_request("a", 240);
  request.mutable_stopping()->set_ignore_eos(true);
  const StreamRecord record = generate(request);
  ASSERT_TRUE(record.status.ok());
  std::vector<uint32_t> expected;
  uint32_t last = AlphabetWorkers::kA;
  for (int i = 0; i < 240; ++i) {
    last = last == 92 ? 1 : last == 1 ? 67 : last + 1;
    expected.push_back(last);
  }
  EXPECT_EQ(record.ids(), expected);
}

struct BadRequest {
  const char* field;  ///< of the violation; empty: no field is named
  std::function<void(wire::GenerateRequest*)> spoil;
};

TEST_F(GrpcGenerate, RefusesBadRequestsBeforeTheFirstEvent) {
  const std::vector<BadRequest> bad = {
      {"prompt", [](auto* r) { r->clear_input(); }},
      {"token_ids.ids", [](auto* r) { r->mutable_token_ids(); }},
      {"token_ids.ids", [](auto* r) { r->mutable_token_ids()->add_ids(892); }},
      {"token_ids.ids", [](auto* r) { r->mutable_token_ids()->add_ids(4294967295U); }},
      {"token_ids.ids",
       [](auto* r) {
         for (int i = 0; i < 300; ++i) r->mutable_token_ids()->add_ids(67);
       }},
      {"sampling.temperature", [](auto* r) { r->mutable_sampling()->set_temperature(-1); }},
      {"sampling.temperature",
       [](auto* r) {
         r->mutable_sampling()->set_temperature(std::numeric_limits<double>::quiet_NaN());
       }},
      {"sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(1.5); }},
      {"sampling.top_k", [](auto* r) { r->mutable_sampling()->set_top_k(-2); }},
      {"sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(-0.1); }},
      {"sampling.repetition_penalty",
       [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.presence_penalty",
       [](auto* r) { r->mutable_sampling()->set_presence_penalty(1e9); }},
      {"sampling.frequency_penalty",
       [](auto* r) { r->mutable_sampling()->set_frequency_penalty(-1e9); }},
      {"sampling.num_sequences", [](auto* r) { r->mutable_sampling()->set_num_sequences(0); }},
      {"sampling.num_sequences", [](auto* r) { r->mutable_sampling()->set_num_sequences(2); }},
      {"stopping.max_tokens", [](auto* r) { r->mutable_stopping()->set_max_tokens(0); }},
      {"stopping.min_tokens", [](auto* r) { r->mutable_stopping()->set_min_tokens(1); }},
      {"stopping.conditions[0]", [](auto* r) { r->mutable_stopping()->add_conditions(); }},
      {"stopping.conditions[0]",
       [](auto* r) { r->mutable_stopping()->add_conditions()->set_stop_text(""); }},
      {"stopping.conditions",
       [](auto* r) { r->mutable_stopping()->add_conditions()->set_stop_token_id(892); }},
      {"response.return_prompt_logprobs",
       [](auto* r) { r->mutable_response()->set_return_prompt_logprobs(true); }},
      {"response.prompt_candidates",
       [](auto* r) { r->mutable_response()->mutable_prompt_candidates(); }},
      {"response.prompt_logprob_start",
       [](auto* r) { r->mutable_response()->set_prompt_logprob_start(0); }},
      {"response.output_candidates",
       [](auto* r) { r->mutable_response()->mutable_output_candidates(); }},
      {"response.output_candidates.all",
       [](auto* r) { r->mutable_response()->mutable_output_candidates()->mutable_all(); }},
      {"response.output_candidates.token_ids",
       [](auto* r) {
         r->mutable_response()->mutable_output_candidates()->mutable_token_ids()->add_ids(1);
       }},
      {"response.output_candidates.top_n",
       [](auto* r) { r->mutable_response()->mutable_output_candidates()->set_top_n(4000000000U); }},
      {"kv.session", [](auto* r) { r->mutable_kv()->mutable_session(); }},
      {"guided", [](auto* r) { r->mutable_guided()->set_regex("a+"); }},
      {"media", [](auto* r) { r->add_media()->set_url("http://x"); }},
      {"lora_name", [](auto* r) { r->set_lora_name("adapter"); }},
      {"request_id", [](auto* r) { r->set_request_id(std::string(1000, 'x')); }},
      {"request_id", [](auto* r) { r->set_request_id("one\nERROR two"); }},
      {"prompt", [](auto* r) { r->set_prompt(std::string(100'000, 'a')); }},
  };
  for (const BadRequest& one : bad) {
    wire::GenerateRequest request = text_request("a");
    one.spoil(&request);
    const StreamRecord record = generate(request);
    EXPECT_EQ(record.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << one.field;
    EXPECT_TRUE(record.events.empty()) << one.field;
    const RefusalDetails details = refusal_details(record.status);
    EXPECT_EQ(details.field, one.field) << record.status.error_message();
    EXPECT_EQ(details.reason, "INVALID_REQUEST");
  }
  EXPECT_TRUE(generate(text_request("a")).status.ok()) << "and the server goes on";
}

/// Calls a method with these bytes as the request.
grpc::Status call_with_bytes(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& method, const std::string& bytes) {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  grpc::GenericStub stub(channel);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

/// A string field of another kind: field number, length, bytes.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

TEST_F(GrpcGenerate, NamesTheFieldThatIsNotUtf8) {
  const std::string bad = "caf\xE9";  // Latin-1
  const std::string good = field(1, "id") + field(3, "a prompt");
  const std::pair<std::string, std::string> cases[] = {
      {field(3, bad), "prompt"},
      {good + field(2, bad), "model"},
      {good + field(6, field(3, field(1, "fine")) + field(3, field(1, bad))),
       "stopping.conditions[1].stop_text"},
      {good + field(8, field(3, bad)), "kv.cache_salt"},
      {good + field(12, field(1, field(1, bad))), "extra.fields[0].key"},
      {good + "\x1A\x7F", ""},                       // a text that ends too early
      {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", ""},  // no message at all
  };
  for (const auto& [bytes, path] : cases) {
    const grpc::Status status =
        call_with_bytes(channel_, "/openengine.v1.Inference/Generate", bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << path;
    const RefusalDetails details = refusal_details(status);
    EXPECT_EQ(details.field, path) << status.error_message();
    EXPECT_EQ(details.reason, "INVALID_REQUEST");
    EXPECT_FALSE(status.error_message().empty());
  }
  EXPECT_TRUE(generate(text_request("a")).status.ok()) << "and the server goes on";
}

TEST_F(GrpcGenerate, EveryMethodSaysWhyItCannotReadARequest) {
  const std::pair<const char*, int> methods[] = {{"GetModelInfo", 1}, {"Health", 2}, {"Abort", 1}};
  for (const auto& [method, number] : methods) {
    const grpc::Status status = call_with_bytes(
        channel_, std::string("/openengine.v1.Control/") + method, field(number, "caf\xE9"));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_NE(status.error_message().find("UTF-8"), std::string::npos) << status.error_message();
  }
}

/// Each of these takes two to four bytes on the wire and fifty times as many as an object.
TEST_F(GrpcGenerate, BoundsThePartsOfARequest) {
  wire::GenerateRequest request = text_request("a", 1);
  for (int i = 0; i < 1024; ++i)
    request.mutable_stopping()->add_conditions()->set_stop_token_id(AlphabetWorkers::kA);
  EXPECT_TRUE(generate(request).status.ok());
  request.mutable_stopping()->add_conditions()->set_stop_token_id(AlphabetWorkers::kA);
  EXPECT_EQ(refusal_details(generate(request).status).field, "stopping.conditions");

  std::string many;
  for (int i = 0; i < 70'000; ++i) many += field(3, "");
  std::string length = {static_cast<char>(6 << 3 | 2), static_cast<char>(many.size() | 0x80),
                        static_cast<char>(many.size() >> 7 | 0x80),
                        static_cast<char>(many.size() >> 14)};
  const grpc::Status status =
      call_with_bytes(channel_, "/openengine.v1.Inference/Generate", field(3, "a") + length + many);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refusal_details(status).field, "stopping") << status.error_message();
}

TEST_F(GrpcGenerate, RefusesARequestThatIsTooLong) {
  const StreamRecord record = generate(text_request(std::string(17 << 20, 'a')));
  EXPECT_FALSE(record.status.ok());
  EXPECT_FALSE(record.status.error_message().empty());
  EXPECT_TRUE(generate(text_request("a")).status.ok()) << "and the server goes on";
}

TEST_F(GrpcGenerate, AcceptsWhatItCanHonourTrivially) {
  wire::GenerateRequest request = text_request("a", 1);
  request.mutable_sampling()->set_num_sequences(1);
  request.mutable_stopping()->set_min_tokens(0);
  request.mutable_response()->set_return_prompt_logprobs(false);
  request.mutable_kv()->set_bypass_prefix_cache(true);
  request.mutable_kv()->set_cache_salt("salt");
  (*request.mutable_extra()->mutable_fields())["unknown"].set_bool_value(true);
  EXPECT_TRUE(generate(request).status.ok());
}

TEST_F(GrpcGenerate, KnowsOneModel) {
  wire::GenerateRequest request = text_request("a");
  request.set_model("gpt-7");
  const grpc::Status status = generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_NE(status.error_message().find("letters"), std::string::npos) << status.error_message();
  EXPECT_EQ(refusal_details(status).reason, "MODEL_NOT_FOUND");
}

TEST_F(GrpcGenerate, ChecksItsMetadata) {
  using Pairs = std::vector<std::pair<const char*, const char*>>;
  const std::vector<Pairs> bad = {
      {{"openengine-priority", "high"}},
      {{"openengine-priority", "3000000000"}},
      {{"openengine-priority", ""}},
      {{"openengine-target-dp-rank", "-1"}},
      {{"openengine-target-dp-rank", "1"}},
      {{"openengine-target-dp-rank", "0x0"}},
      {{"openengine-routing-key", ""}},
      {{"openengine-priority", "1"}, {"openengine-priority", "1"}},
      {{"openengine-later", "1"}, {"openengine-later", "2"}},
  };
  for (const Pairs& pairs : bad) {
    grpc::ClientContext context;
    for (const auto& [key, value] : pairs) context.AddMetadata(key, value);
    const grpc::Status status = generate(&context, text_request("a")).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << pairs[0].first << "=" << pairs[0].second;
    EXPECT_NE(status.error_message().find(pairs[0].first), std::string::npos)
        << status.error_message();
  }
  grpc::ClientContext context;
  context.AddMetadata("openengine-priority", "-5");
  context.AddMetadata("openengine-target-dp-rank", "0");
  context.AddMetadata("openengine-routing-key", "tenant 7");
  context.AddMetadata("openengine-later", "unknown keys are a later revision's");
  context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  EXPECT_TRUE(generate(&context, text_request("a")).status.ok());
}

TEST_F(GrpcGenerate, RefusesARunningRequestId) {
  wire::GenerateRequest request = text_request("a", 2);
  request.set_request_id("twice");
  workers_.hold();
  grpc::ClientContext context;
  const auto first = inference_->Generate(&context, request);
  ASSERT_TRUE(eventually([&] { return !idle(); }));
  const grpc::Status status = generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_NE(status.error_message().find("twice"), std::string::npos);
  EXPECT_EQ(refusal_details(status).reason, "DUPLICATE_REQUEST");
  workers_.release();
  int events = 0;
  for (wire::GenerateResponse event; first->Read(&event);) ++events;
  EXPECT_TRUE(first->Finish().ok()) << "the first one is not disturbed";
  EXPECT_GE(events, 2);
}

TEST_F(GrpcGenerate, ServesManyStreamsAtOnce) {
  constexpr int kStreams = 40;
  std::vector<StreamRecord> records(kStreams);
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i)
    clients.emplace_back([&, i] {
      records[i] = generate(text_request(std::string(1, static_cast<char>('a' + i % 10)), 12));
    });
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(records[i].status.ok()) << records[i].status.error_message();
    std::string expected;
    for (int letter = 1; letter <= 12; ++letter)
      expected += static_cast<char>('a' + i % 10 + letter);
    EXPECT_EQ(records[i].text(), expected);
  }
  EXPECT_TRUE(eventually([&] { return loop_->load().used_kv_blocks == 0; }));
}

}  // namespace
}  // namespace shoal
