#include "runtime/engine/step_plan.h"

#include <gtest/gtest.h>
#include <limits>

#include "tests/hostile_bytes.h"

namespace shoal {
namespace {

StepPlan sample_plan() {
  SequenceStep sequence;
  sequence.id = 77;
  sequence.token_ids = {1, 2, 262143};
  sequence.first_position = 31;
  sequence.block_table = {9, 0, 4};
  sequence.sample = true;
  sequence.all_logits = true;
  sequence.sampling = {.temperature = 0.1f,
                       .top_p = 0.9f,
                       .top_k = 40,
                       .min_p = 0.05f,
                       .repetition_penalty = 1.1f,
                       .presence_penalty = -0.5f,
                       .frequency_penalty = 0.25f,
                       .seed = ~uint64_t{0} - 1,
                       .logprobs = 3};
  sequence.history = {5, 6, 7};
  sequence.history_prompt_tokens = 2;
  return {42, {sequence, {}}};
}

StepResult sample_result() {
  StepResult result;
  result.step = 7;
  result.tokens = {{1, 5, -0.1f, 2, {{5, -0.1f}, {6, -3.4028235e38f}}}, {2, 9, 0, 0, {}}};
  result.logits = {0.1f, -0.0f, std::numeric_limits<float>::denorm_min(),
                   std::numeric_limits<float>::infinity()};
  return result;
}

constexpr auto kEncode = [](const auto& value) { return encode(value); };
constexpr auto kDecodePlan = [](std::string_view bytes) {
  return decode<StepPlan>(bytes, "step plan");
};
constexpr auto kDecodeResult = [](std::string_view bytes) {
  return decode<StepResult>(bytes, "step result");
};

TEST(StepPlan, KeepsEveryField) {
  const Result<StepPlan> back = kDecodePlan(encode(sample_plan()));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_TRUE(*back == sample_plan());
}

TEST(StepPlan, AResultKeepsItsFloatsToTheBit) {
  const StepResult result = sample_result();
  const Result<StepResult> back = kDecodeResult(encode(result));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->step, 7u);
  EXPECT_TRUE(back->tokens == result.tokens);
  ASSERT_EQ(back->logits.size(), 4u);
  EXPECT_EQ(std::memcmp(back->logits.data(), result.logits.data(), 16), 0);
}

TEST(StepPlan, HostileBytesAreAnError) {
  attack(encode(sample_plan()), kDecodePlan, kEncode);
  attack(encode(sample_result()), kDecodeResult, kEncode);
}

}  // namespace
}  // namespace shoal
