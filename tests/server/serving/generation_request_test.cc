#include "server/serving/generation_request.h"

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <limits>

#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

GenerationRequest with_ids(std::vector<int64_t> ids = {5, 6, 7}) {
  GenerationRequest request;
  request.prompt_ids = std::move(ids);
  return request;
}

RequestError error_of(const std::function<void(GenerationRequest&)>& change,
                      const ServedModel& model = test_model()) {
  GenerationRequest request = with_ids();
  change(request);
  const RequestError error = resolve_request(request, model).error();
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  return error;
}

std::string refusal(const std::function<void(GenerationRequest&)>& change,
                    const ServedModel& model = test_model()) {
  return std::string(error_of(change, model).status.message());
}

ServedModel model_with(GenerationConfig generation) {
  Result<Tokenizer> tokenizer = Tokenizer::load(SHOAL_TEST_DATA "/oracle/llama3-gqa-tied-sharded");
  return {.name = "m",
          .config = test_model().config,
          .generation = std::move(generation),
          .tokenizer = std::move(tokenizer).value(),
          .max_model_len = 200,
          .default_seed = 1};
}

TEST(GenerationRequestTest, DefaultsWithoutGenerationConfig) {
  const ResolvedRequest resolved = resolve_request(with_ids(), test_model()).value();
  SamplingParams expected;
  expected.seed = 77;
  EXPECT_EQ(resolved.engine.sampling, expected);
  EXPECT_EQ(resolved.engine.prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(resolved.engine.max_tokens, 197);
  EXPECT_EQ(resolved.engine.eos_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(resolved.stop.empty());
  EXPECT_FALSE(resolved.include_stop_in_output);
}

TEST(GenerationRequestTest, WithoutAnySeedEachRequestDrawsItsOwn) {
  ServedModel model = model_with({});
  model.default_seed.reset();
  const auto seed = [&](std::optional<uint64_t> own) {
    GenerationRequest request = with_ids();
    request.seed = own;
    return resolve_request(request, model).value().engine.sampling.seed;
  };
  EXPECT_NE(seed({}), seed({}));
  EXPECT_EQ(seed(7), 7u);
}

TEST(GenerationRequestTest, TextThatIsSurelyTooLongIsNotTokenized) {
  const auto change = [](GenerationRequest& request) {
    request.prompt_ids.reset();
    request.prompt = std::string((1 << 20) + 1, 'a');
  };
  EXPECT_EQ(
      refusal(change),
      "the prompt has 1048577 bytes; at most 1048576 are read for a model length of 200 tokens");
}

TEST(GenerationRequestTest, GenerationConfigFillsWhatTheRequestLeavesOut) {
  const ServedModel model = model_with({.temperature = 0.6f,
                                        .top_p = 0.8f,
                                        .top_k = 20,
                                        .min_p = 0.1f,
                                        .repetition_penalty = 1.1f,
                                        .eos_token_ids = {9}});
  GenerationRequest request = with_ids();
  ResolvedRequest resolved = resolve_request(request, model).value();
  EXPECT_EQ(resolved.engine.sampling, (SamplingParams{.temperature = 0.6f,
                                                      .top_p = 0.8f,
                                                      .top_k = 20,
                                                      .min_p = 0.1f,
                                                      .repetition_penalty = 1.1f,
                                                      .seed = 1}));
  EXPECT_EQ(resolved.engine.eos_token_ids, std::vector<int32_t>{9});

  request.temperature = 0;
  request.top_p = 1;
  request.top_k = -1;
  request.min_p = 0;
  request.repetition_penalty = 1;
  request.seed = 0;
  request.ignore_eos = true;
  resolved = resolve_request(request, model).value();
  EXPECT_EQ(resolved.engine.sampling, SamplingParams{.temperature = 0});
  EXPECT_TRUE(resolved.engine.eos_token_ids.empty());
}

TEST(GenerationRequestTest, EveryFieldArrives) {
  GenerationRequest request = with_ids();
  request.temperature = 0.3;
  request.top_p = 0.5;
  request.top_k = 40;
  request.min_p = 0.05;
  request.repetition_penalty = 1.25;
  request.presence_penalty = -1.5;
  request.frequency_penalty = 2;
  request.seed = ~uint64_t{0};
  request.max_tokens = 10;
  request.stop = {"a", "\xF0\x9F\x90\x9F"};
  request.stop_token_ids = {8, 3, 8};
  request.include_stop_in_output = true;
  request.logprobs = 64;
  const ResolvedRequest resolved = resolve_request(request, test_model()).value();
  EXPECT_EQ(resolved.engine.sampling, (SamplingParams{.temperature = 0.3f,
                                                      .top_p = 0.5f,
                                                      .top_k = 40,
                                                      .min_p = 0.05f,
                                                      .repetition_penalty = 1.25f,
                                                      .presence_penalty = -1.5f,
                                                      .frequency_penalty = 2,
                                                      .seed = ~uint64_t{0},
                                                      .logprobs = 64}));
  EXPECT_EQ(resolved.engine.max_tokens, 10);
  EXPECT_EQ(resolved.engine.stop_token_ids, (std::vector<int32_t>{3, 8}));
  EXPECT_EQ(resolved.stop, request.stop);
  EXPECT_TRUE(resolved.include_stop_in_output);
}

TEST(GenerationRequestTest, TextGoesThroughThePostProcessor) {
  GenerationRequest request;
  request.prompt = "fish<|end|>";
  const ResolvedRequest resolved = resolve_request(request, test_model()).value();
  std::vector<int32_t> expected = ids_of_text("fish");
  expected.insert(expected.begin(), 0);
  expected.push_back(1);
  EXPECT_EQ(resolved.engine.prompt, expected);
}

TEST(GenerationRequestTest, PromptMustBeOneOfTwoAndNotEmpty) {
  EXPECT_EQ(refusal([](auto& r) { r.prompt = "x"; }),
            "give exactly one of prompt and prompt_ids, not both");
  EXPECT_EQ(refusal([](auto& r) { r.prompt_ids.reset(); }),
            "give exactly one of prompt and prompt_ids, not none");
  EXPECT_EQ(refusal([](auto& r) { r.prompt_ids->clear(); }),
            "prompt_ids gives no tokens; at least 1 is needed");
}

TEST(GenerationRequestTest, IdsMustBeTheModels) {
  EXPECT_EQ(refusal([](auto& r) { r.prompt_ids->back() = 892; }),
            "prompt_ids[2] is 892; the model's ids are 0 to 891");
  EXPECT_EQ(refusal([](auto& r) { r.prompt_ids->front() = -1; }),
            "prompt_ids[0] is -1; the model's ids are 0 to 891");
  EXPECT_EQ(refusal([](auto& r) {
              r.stop_token_ids = {5, int64_t{1} << 40};
            }),
            "stop_token_ids[1] is 1099511627776; the model's ids are 0 to 891");
}

TEST(GenerationRequestTest, LengthIsBounded) {
  EXPECT_EQ(
      refusal([](auto& r) { r.prompt_ids->assign(200, 4); }),
      "the prompt has 200 tokens; at most 199 fit, the model length of 200 less one to generate");
  ServedModel tiny = model_with({});
  tiny.max_model_len = 2;
  EXPECT_EQ(refusal([](auto& r) { r.prompt_ids->assign(2, 4); }, tiny),
            "the prompt has 2 tokens; at most 1 fits, the model length of 2 less one to generate");
  EXPECT_EQ(refusal([](auto& r) { r.max_tokens = 0; }), "max_tokens must be at least 1, not 0");
  GenerationRequest request = with_ids(std::vector<int64_t>(199, 4));
  request.max_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(resolve_request(request, test_model()).value().engine.max_tokens, 1);
}

TEST(GenerationRequestTest, NumbersOutOfBoundsNameTheFieldAndTheBounds) {
  EXPECT_EQ(refusal([](auto& r) { r.temperature = -1; }),
            "temperature must be in [0, 100], not -1");
  EXPECT_EQ(refusal([](auto& r) { r.temperature = kNan; }),
            "temperature must be in [0, 100], not nan");
  EXPECT_EQ(refusal([](auto& r) { r.temperature = kInfinity; }),
            "temperature must be in [0, 100], not inf");
  EXPECT_EQ(refusal([](auto& r) { r.temperature = 1e300; }),
            "temperature must be in [0, 100], not 1e+300");
  EXPECT_EQ(refusal([](auto& r) { r.top_p = 0; }), "top_p must be in (0, 1], not 0");
  EXPECT_EQ(refusal([](auto& r) { r.top_p = 1e-60; }), "top_p must be in (0, 1], not 1e-60");
  EXPECT_EQ(refusal([](auto& r) { r.top_p = 1.5; }), "top_p must be in (0, 1], not 1.5");
  EXPECT_EQ(refusal([](auto& r) { r.min_p = -0.5; }), "min_p must be in [0, 1], not -0.5");
  EXPECT_EQ(refusal([](auto& r) { r.repetition_penalty = 0; }),
            "repetition_penalty must be in (0, 100], not 0");
  EXPECT_EQ(refusal([](auto& r) { r.presence_penalty = 2.5; }),
            "presence_penalty must be in [-2, 2], not 2.5");
  EXPECT_EQ(refusal([](auto& r) { r.frequency_penalty = kNan; }),
            "frequency_penalty must be in [-2, 2], not nan");
  EXPECT_EQ(refusal([](auto& r) { r.top_k = -2; }), "top_k must be in [-1, 2147483647], not -2");
  EXPECT_EQ(refusal([](auto& r) { r.logprobs = 65; }), "logprobs must be in [0, 64], not 65");
  EXPECT_EQ(refusal([](auto& r) { r.logprobs = -1; }), "logprobs must be in [0, 64], not -1");
}

TEST(GenerationRequestTest, BadDefaultsOfTheModelAreNamedAsSuch) {
  GenerationConfig bad;
  bad.temperature = -3.f;
  const ServedModel model = model_with(bad);
  EXPECT_EQ(refusal([](auto&) {}, model),
            "temperature (of generation_config.json) must be in [0, 100], not -3");
  GenerationRequest request = with_ids();
  request.temperature = 1;
  EXPECT_TRUE(resolve_request(request, model).ok());
}

TEST(GenerationRequestTest, StopStringsAreBounded) {
  EXPECT_EQ(refusal([](auto& r) { r.stop = {"a", ""}; }), "stop[1] is empty");
  EXPECT_EQ(refusal([](auto& r) { r.stop.assign(17, "a"); }),
            "stop has 17 strings; at most 16 are allowed");
  EXPECT_EQ(refusal([](auto& r) { r.stop = {std::string(4097, 'a')}; }),
            "stop[0] has 4097 bytes; at most 4096 are allowed");
  EXPECT_EQ(refusal([](auto& r) { r.stop = {"\x80"}; }), "stop[0] is not valid UTF-8");
  EXPECT_EQ(refusal([](auto& r) { r.stop = {"\xE2\x82"}; }), "stop[0] is not valid UTF-8");
}

TEST(GenerationRequestTest, AnErrorHoldsItsField) {
  using enum RequestField;
  EXPECT_EQ(error_of([](auto& r) { r.temperature = -1; }).field, kTemperature);
  EXPECT_EQ(error_of([](auto& r) { r.top_p = 0; }).field, kTopP);
  EXPECT_EQ(error_of([](auto& r) { r.top_k = -2; }).field, kTopK);
  EXPECT_EQ(error_of([](auto& r) { r.min_p = 2; }).field, kMinP);
  EXPECT_EQ(error_of([](auto& r) { r.repetition_penalty = 0; }).field, kRepetitionPenalty);
  EXPECT_EQ(error_of([](auto& r) { r.presence_penalty = 3; }).field, kPresencePenalty);
  EXPECT_EQ(error_of([](auto& r) { r.frequency_penalty = 3; }).field, kFrequencyPenalty);
  EXPECT_EQ(error_of([](auto& r) { r.max_tokens = 0; }).field, kMaxTokens);
  EXPECT_EQ(error_of([](auto& r) { r.logprobs = -1; }).field, kLogprobs);
  EXPECT_EQ(error_of([](auto& r) { r.stop = {""}; }).field, kStop);
  EXPECT_EQ(error_of([](auto& r) { r.stop_token_ids = {-1}; }).field, kStopTokenIds);
  EXPECT_EQ(error_of([](auto& r) { r.prompt_ids->assign(200, 4); }).field, kPromptIds);
  EXPECT_EQ(error_of([](auto& r) { r.prompt_ids->front() = -1; }).field, kPromptIds);
  EXPECT_EQ(error_of([](auto& r) {
              r.prompt_ids.reset();
              r.prompt = std::string(10'000, 'a');
            }).field,
            kPrompt)
      << "the same text as of ids, and another field";
}

TEST(GenerationRequestTest, TheMostBytesOfAnAnswerGrowWithItsTokensAndLogprobs) {
  const ServedModel& model = test_model();
  GenerationRequest request = with_ids();
  const size_t of_all = most_answer_bytes(request, model);
  request.max_tokens = model.max_model_len + 1;
  EXPECT_EQ(most_answer_bytes(request, model), of_all) << "no answer is longer than the model's";
  request.max_tokens = model.max_model_len / 10;
  const size_t of_some = most_answer_bytes(request, model);
  EXPECT_GT(of_some, 0U);
  EXPECT_EQ(10 * of_some, of_all);
  request.logprobs = 0;
  const size_t with_its_own = most_answer_bytes(request, model);
  EXPECT_GT(with_its_own, of_some);
  request.logprobs = 3;
  EXPECT_EQ(most_answer_bytes(request, model) - of_some, 4 * (with_its_own - of_some));
  request.max_tokens = -1;
  EXPECT_EQ(most_answer_bytes(request, model), 0U);
}

}  // namespace
}  // namespace shoal
