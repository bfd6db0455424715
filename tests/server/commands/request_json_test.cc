// generate --jsonl: a request from a line, and a completion as JSON.
#include "server/commands/request_json.h"

#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "runtime/base/json.h"

namespace shoal {
namespace {

TEST(RequestJsonTest, ReadsEveryField) {
  const Result<GenerationRequest, RequestError> request = parse_request_json(
      R"({"prompt_ids":[1,2],"max_tokens":8,"temperature":0,"top_p":0.9,"top_k":5,"min_p":0.1,"repetition_penalty":1.1,
          "presence_penalty":-1,"frequency_penalty":0.5,"stop":["a","b"],"stop_token_ids":[3],
          "seed":18446744073709551615,"logprobs":3,"ignore_eos":true})",
      {});
  ASSERT_TRUE(request.ok()) << request.error().status.to_string();
  EXPECT_EQ(request->prompt_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(request->prompt);
  EXPECT_EQ(request->max_tokens, 8);
  EXPECT_EQ(request->temperature, 0.0);
  EXPECT_EQ(request->top_p, 0.9);
  EXPECT_EQ(request->top_k, 5);
  EXPECT_EQ(request->min_p, 0.1);
  EXPECT_EQ(request->repetition_penalty, 1.1);
  EXPECT_EQ(request->presence_penalty, -1.0);
  EXPECT_EQ(request->frequency_penalty, 0.5);
  EXPECT_EQ(request->stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request->stop_token_ids, (std::vector<int64_t>{3}));
  EXPECT_EQ(request->seed, UINT64_MAX);
  EXPECT_EQ(request->logprobs, 3);
  EXPECT_TRUE(request->ignore_eos);
}

TEST(RequestJsonTest, AbsentAndNullFieldsKeepTheDefaults) {
  GenerationRequest defaults;
  defaults.max_tokens = 5;
  defaults.stop = {"x"};
  defaults.ignore_eos = true;
  const Result<GenerationRequest, RequestError> request =
      parse_request_json(R"({"prompt":"hi","max_tokens":null})", defaults);
  ASSERT_TRUE(request.ok()) << request.error().status.to_string();
  EXPECT_EQ(request->prompt, "hi");
  EXPECT_EQ(request->max_tokens, 5);
  EXPECT_EQ(request->stop, std::vector<std::string>{"x"});
  EXPECT_TRUE(request->ignore_eos);
  EXPECT_FALSE(request->temperature || request->seed || request->logprobs);
  EXPECT_EQ(parse_request_json(R"({"prompt":"hi","stop":"one"})", defaults)->stop,
            std::vector<std::string>{"one"});
}

TEST(RequestJsonTest, MessagesMayStandInThePlaceOfAPrompt) {
  const char* list = R"([{"role":"user","content":"a","b":1,"a":2}])";
  OrderedJson messages;
  const Result<GenerationRequest, RequestError> request = parse_request_json(
      cat(R"({"messages":)", list, R"(,"max_tokens":3,"seed":18446744073709551615})"), {},
      LineKind::kRequest, nullptr, &messages);
  ASSERT_TRUE(request.ok()) << request.error().status.to_string();
  EXPECT_FALSE(request->prompt || request->prompt_ids);
  EXPECT_EQ(request->max_tokens, 3);
  EXPECT_EQ(request->seed, UINT64_MAX);
  EXPECT_EQ(messages.dump(), list) << "the members keep their order";
  EXPECT_TRUE(parse_request_json(R"({"prompt":"a","messages":null})", {}, LineKind::kRequest,
                                 nullptr, &messages)
                  .ok());
  EXPECT_TRUE(messages.is_null());
}

TEST(RequestJsonTest, BadLinesAreExplained) {
  struct Case {
    const char* line;
    const char* said;
  };
  constexpr Case kCases[] = {
      {"", "; a line must be a JSON object such as {\"prompt\":\"...\",\"max_tokens\":8}"},
      {"nonsense", "; a line must be a JSON object such as"},
      {"{", "INVALID_ARGUMENT: not JSON at byte "},
      {"[1]", "INVALID_ARGUMENT: must be a JSON object"},
      {"\"x\"", "must be a JSON object"},
      {"{}", "needs one of \"prompt\", \"prompt_ids\" and \"messages\""},
      {R"({"prompt":"a","prompt_ids":[1]})", "takes only one of \"prompt\", "},
      {R"({"prompt":"a","messages":[]})", "takes only one of \"prompt\", "},
      {R"({"prompt_ids":[1],"messages":[]})", "takes only one of \"prompt\", "},
      {R"({"message":[]})", "unknown field \"message\"; did you mean \"messages\"?"},
      {R"({"messages":[18446744073709551615]})", "an integer does not fit into 64 bits"},
      {R"({"prompt":"a","sampling":{}})", "write the members of an answer's sampling as fields"},
      {R"({"prompt":"a","max_token":1})",
       "unknown field \"max_token\"; did you mean \"max_tokens\"?"},
      {R"({"prompt":"a","n":2})", "unknown field \"n\"; fields are the flags' names"},
      {R"({"prompt":"a","max_tokens":1,"prompt":"b"})", "\"prompt\" stands twice"},
      {R"({"prompt":1})", "INVALID_ARGUMENT: \"prompt\" must be a string"},
      {R"({"prompt_ids":"1,2"})", "\"prompt_ids\" must be an array of token ids"},
      {R"({"prompt_ids":[1.5]})", "\"prompt_ids\""},
      {R"({"prompt_ids":[-1]})", "\"prompt_ids\""},
      {R"({"prompt_ids":[2147483648]})", "\"prompt_ids\""},
      {R"({"prompt_ids":[18446744073709551615]})", "\"prompt_ids\""},
      {R"({"prompt":"a","stop":[1]})", "\"stop\""},
      {R"({"prompt":"a","stop":{}})", "\"stop\""},
      {R"({"prompt":"a","seed":-1})", "\"seed\""},
      {R"({"prompt":"a","seed":18446744073709551616})", "\"seed\""},
      {R"({"prompt":"a","ignore_eos":1})", "\"ignore_eos\" must be true or false"},
      {R"({"prompt":"a","temperature":"0"})", "\"temperature\" must be a number"},
      {R"({"prompt":"a","max_tokens":1.5})", "\"max_tokens\" must be an integer"},
  };
  for (const Case& c : kCases) {
    const Result<GenerationRequest, RequestError> request = parse_request_json(c.line, {});
    ASSERT_FALSE(request.ok()) << c.line;
    EXPECT_EQ(request.error().code(), Code::kInvalidArgument) << c.line;
    const std::string text = request.error().status.to_string();
    EXPECT_NE(text.find(c.said), std::string::npos) << c.line << " gave " << text;
  }
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  EXPECT_FALSE(parse_request_json(R"({"prompt_ids":)" + deep + "}", {}).ok());
}

TEST(RequestJsonTest, AnErrorHoldsItsField) {
  using enum RequestField;
  const auto field_of = [](const char* line) { return parse_request_json(line, {}).error().field; };
  EXPECT_EQ(field_of(R"({"prompt":1})"), kPrompt);
  EXPECT_EQ(field_of(R"({"prompt_ids":[-1]})"), kPromptIds);
  EXPECT_EQ(field_of(R"({"prompt":"a","max_tokens":1.5})"), kMaxTokens);
  EXPECT_EQ(field_of(R"({"prompt":"a","temperature":"0"})"), kTemperature);
  EXPECT_EQ(field_of(R"({"prompt":"a","seed":-1})"), kSeed);
  EXPECT_EQ(field_of(R"({"prompt":"a","stop":[1]})"), kStop);
  EXPECT_EQ(field_of(R"({"prompt":"a","stop_token_ids":"1"})"), kStopTokenIds);
  EXPECT_EQ(field_of(R"({"prompt":"a","ignore_eos":1})"), kIgnoreEos);
  EXPECT_EQ(field_of(R"({"prompt":"a","n":2})"), kNone) << "no field of a request";
  EXPECT_EQ(field_of("[1]"), kNone);
}

TEST(RequestJsonTest, EveryFieldHasItsName) {
  // The names are in a table beside the enum. The first and the last one show that the table has
  // the enum's order.
  EXPECT_STREQ(field_name(RequestField::kNone), "");
  EXPECT_STREQ(field_name(RequestField::kRequestId), "request_id");
  EXPECT_STREQ(field_name(RequestField::kFrequencyPenalty), "frequency_penalty");
  EXPECT_STREQ(field_name(RequestField::kLogprobs), "logprobs");
  EXPECT_FALSE(parse_request_json(R"({"prompt":"a","request_id":"x"})", {}).ok());
}

Completion example() {
  Completion completion;
  completion.prompt_token_ids = {1, 2};
  completion.tokens = {{1, 5, -0.125f, 1, {{5, -0.125f}, {6, -2.5f}}}, {1, 7, -0.0f, 1, {}}};
  completion.text = "a\"b\n\xC3\xA9";
  completion.sampling = {
      .temperature = 0.7f, .top_p = 0.95f, .top_k = 20, .seed = UINT64_MAX, .logprobs = 2};
  completion.end.finish.reason = FinishReason::kStop;
  completion.end.prompt_tokens = 2;
  completion.end.completion_tokens = 2;
  return completion;
}

TEST(CompletionJsonTest, IsExactlyTheDocumentedObject) {
  Completion completion = example();
  EXPECT_EQ(
      completion_json(completion, "shm"),
      "{\"prompt_token_ids\":[1,2],\"token_ids\":[5,7],\"text\":\"a\\\"b\\n\xC3\xA9\",\"finish_reason\":\"stop\","
      "\"logprobs\":[{\"token_id\":5,\"logprob\":-0.125,\"top\":[[5,-0.125],[6,-2.5]]},"
      "{\"token_id\":7,\"logprob\":-0.0,\"top\":[]}],"
      "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2},"
      "\"sampling\":{\"temperature\":0.7,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.0,"
      "\"repetition_penalty\":1.0,\"presence_penalty\":0.0,\"frequency_penalty\":0.0,"
      "\"seed\":18446744073709551615},\"transport\":\"shm\"}");
  completion.sampling.logprobs = -1;
  completion.end.finish.reason = FinishReason::kLength;
  const std::string text = completion_json(completion, "tcp");
  EXPECT_NE(text.find("\"logprobs\":null"), std::string::npos);
  EXPECT_NE(text.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_TRUE(parse_json(text, "line").ok());
}

TEST(CompletionJsonTest, ALineTakesTheSamplingOfAnAnswer) {
  Completion completion = example();
  completion.sampling = {.temperature = 0.1f,
                         .top_p = 0.2f,
                         .top_k = 3,
                         .min_p = 0.4f,
                         .repetition_penalty = 1.5f,
                         .presence_penalty = 0.6f,
                         .frequency_penalty = -0.7f,
                         .seed = 8};
  const Result<Json> answer = parse_json(completion_json(completion, "shm"), "line");
  ASSERT_TRUE(answer.ok()) << answer.status().to_string();
  Json line = (*answer)["sampling"];
  line["prompt"] = "hi";
  const Result<GenerationRequest, RequestError> request = parse_request_json(json_text(line), {});
  ASSERT_TRUE(request.ok()) << request.error().status.to_string();
  EXPECT_EQ(static_cast<float>(request->temperature.value()), 0.1f);
  EXPECT_EQ(static_cast<float>(request->top_p.value()), 0.2f);
  EXPECT_EQ(request->top_k, 3);
  EXPECT_EQ(static_cast<float>(request->min_p.value()), 0.4f);
  EXPECT_EQ(static_cast<float>(request->repetition_penalty.value()), 1.5f);
  EXPECT_EQ(static_cast<float>(request->presence_penalty.value()), 0.6f);
  EXPECT_EQ(static_cast<float>(request->frequency_penalty.value()), -0.7f);
  EXPECT_EQ(request->seed, 8u);
}

TEST(CompletionJsonTest, FloatsReadBackToTheSameBits) {
  uint32_t state = 12345;
  std::vector<float> values = {
      0.0f, -0.0f, 1.0f, -1e-45f, std::numeric_limits<float>::lowest(), -16777216.0f, -1e20f};
  while (values.size() < 20000) {
    state = state * 1664525u + 1013904223u;
    float value;
    std::memcpy(&value, &state, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
  }
  Completion completion = example();
  completion.tokens.clear();
  for (const float value : values) completion.tokens.push_back({1, 3, value, 1, {{3, value}}});
  const Result<Json> line = parse_json(completion_json(completion, "shm"), "line");
  ASSERT_TRUE(line.ok()) << line.status().to_string();
  const Json& logprobs = (*line)["logprobs"];
  ASSERT_EQ(logprobs.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    for (const Json& number : {logprobs[i]["logprob"], logprobs[i]["top"][0][1]}) {
      ASSERT_TRUE(number.is_number_float()) << number;
      const float back = static_cast<float>(number.get<double>());
      EXPECT_EQ(std::memcmp(&back, &values[i], sizeof back), 0)
          << values[i] << " came back as " << back;
    }
  }
}

}  // namespace
}  // namespace shoal
