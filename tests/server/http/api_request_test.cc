#include "server/http/api_request.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

ApiRequest read(const std::string& body, ApiRoute route = ApiRoute::kCompletions) {
  Result<ApiRequest, HttpError> request = read_api_request(body, route);
  EXPECT_TRUE(request.ok()) << body << ": " << request.error().message;
  return request.ok() ? std::move(request).value() : ApiRequest{};
}

HttpError refusal(const std::string& body, ApiRoute route = ApiRoute::kCompletions) {
  return read_api_request(body, route).error();
}

TEST(ApiRequest, ReadsEveryField) {
  const ApiRequest request = read(R"({"model":"m","prompt":"p","max_tokens":3,"temperature":0.5,
      "top_p":0.9,"top_k":4,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-1,
      "frequency_penalty":1,"seed":18446744073709551615,"stop":["a","b"],"stop_token_ids":[7],
      "ignore_eos":true,"include_stop_str_in_output":true,"logprobs":2,"priority":-3,
      "request_id":"r","stream":true,"stream_options":{"include_usage":true,
      "continuous_usage_stats":true},"return_token_ids":true})");
  ASSERT_EQ(request.prompts.size(), 1u);
  const GenerationRequest& one = request.prompts.front();
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(one.prompt, "p");
  EXPECT_EQ(one.max_tokens, 3);
  EXPECT_EQ(one.temperature, 0.5);
  EXPECT_EQ(one.top_p, 0.9);
  EXPECT_EQ(one.top_k, 4);
  EXPECT_EQ(one.min_p, 0.1);
  EXPECT_EQ(one.repetition_penalty, 1.1);
  EXPECT_EQ(one.presence_penalty, -1);
  EXPECT_EQ(one.frequency_penalty, 1);
  EXPECT_EQ(one.seed, UINT64_MAX);
  EXPECT_EQ(one.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(one.stop_token_ids, (std::vector<int64_t>{7}));
  EXPECT_TRUE(one.ignore_eos && one.include_stop_in_output);
  EXPECT_EQ(one.logprobs, 2);
  EXPECT_EQ(one.priority, -3);
  EXPECT_EQ(request.id, "r");
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage);
  EXPECT_TRUE(request.token_ids);
  EXPECT_TRUE(request.ignored.empty());
}

TEST(ApiRequest, HasOpenAisDefaults) {
  EXPECT_EQ(read(R"({"prompt":"p"})").prompts[0].max_tokens, 16);
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])";
  const ApiRequest chat = read("{" + messages + "}", ApiRoute::kChat);
  EXPECT_EQ(chat.prompts[0].max_tokens, std::nullopt) << "up to the model length";
  EXPECT_TRUE(chat.generation_prompt);
  EXPECT_EQ(
      read(R"({"prompt":"p","max_tokens":3,"max_completion_tokens":4})").prompts[0].max_tokens, 4);
  EXPECT_EQ(read(R"({"prompt":"p","seed":-1})").prompts[0].seed, UINT64_MAX);
  EXPECT_EQ(read("{" + messages + R"(,"logprobs":true})", ApiRoute::kChat).prompts[0].logprobs, 0);
  EXPECT_EQ(read("{" + messages + R"(,"logprobs":false,"top_logprobs":0})", ApiRoute::kChat)
                .prompts[0]
                .logprobs,
            std::nullopt);
}

TEST(ApiRequest, APromptMayBeAListOfPrompts) {
  EXPECT_EQ(read(R"({"prompt":["a","b"]})").prompts[1].prompt, "b");
  EXPECT_EQ(read(R"({"prompt":[1,2]})").prompts[0].prompt_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(read(R"({"prompt":[[1],[2,3]],"seed":9})").prompts[1].seed, 9u);
  for (const char* wrong : {R"({"prompt":[]})", R"({"prompt":[1,"a"]})", R"({"prompt":[null]})",
                            R"({"prompt":{}})", R"({"prompt":[1.5]})", "{}"})
    EXPECT_EQ(refusal(wrong).param, "prompt") << wrong;
  std::string many = R"({"prompt":["a")";
  for (size_t i = 0; i < kMaxPrompts; ++i) many += ",\"a\"";
  EXPECT_EQ(refusal(many + "]}").param, "prompt");
}

/// Each field that is not implemented, with a value of its own, is refused by name; null passes.
TEST(ApiRequest, WhatWouldChangeAnswersIsRefusedByName) {
  for (const ApiField& field : api_fields()) {
    if (field.use != FieldUse::kNeutral) continue;
    const ApiRoute route = field.chat ? ApiRoute::kChat : ApiRoute::kCompletions;
    const char* rest =
        field.chat ? R"("messages":[{"role":"user","content":"a"}])" : R"("prompt":"a")";
    const auto body = [&](const std::string& value) {
      return cat("{\"", field.name, "\":", value, ",", rest, "}");
    };
    const HttpError error = refusal(body("{\"x\":7}"), route);
    EXPECT_EQ(error.status, 400) << field.name;
    EXPECT_EQ(error.param, field.name);
    EXPECT_TRUE(read_api_request(body("null"), route).ok()) << field.name;
    const Json neutral_values = *parse_json(field.meaning, field.name);
    for (const Json& neutral : neutral_values)
      EXPECT_TRUE(read_api_request(body(neutral.dump()), route).ok()) << field.name << neutral;
  }
}

TEST(ApiRequest, UnknownFieldsAreNamedAndPassedFieldsAreNot) {
  const ApiRequest request = read(R"({"prompt":"p","user":"u","cache_salt":"s","b":1,"a":{}})");
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(ignored_fields_header({"a", "b\r\nSet-Cookie: x", "ü,"}), "a, b__Set-Cookie:_x, ___");
  const std::string many =
      ignored_fields_header(std::vector<std::string>(100, std::string(999, 'x')));
  EXPECT_LT(many.size(), 1200u);
  EXPECT_NE(many.find("and 84 more"), std::string::npos);
}

TEST(ApiRequest, WrongTypesAreRefused) {
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("temperature":"1")", "temperature"},
           {R"("top_k":1.5)", "top_k"},
           {R"("seed":18446744073709551616)", "seed"},
           {R"("stop":5)", "stop"},
           {R"("stop":[5])", "stop"},
           {R"("stop_token_ids":["a"])", "stop_token_ids"},
           {R"("stream":1)", "stream"},
           {R"("model":5)", "model"},
           {R"("stream":true,"stream_options":5)", "stream_options"},
           {R"("stream":true,"stream_options":{"include_usage":5})",
            "stream_options.include_usage"}}) {
    const HttpError error = refusal(R"({"prompt":"a",)" + body + "}");
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.param, param) << body;
  }
  for (const char* body : {"", "[]", "5", "{", "{\"prompt\":\"\xff\"}"})
    EXPECT_EQ(refusal(body).status, 400) << body;
}

}  // namespace
}  // namespace shoal
