#include "models/rope.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <string>

#include "models/rope_config.h"
#include "runtime/base/json.h"

namespace shoal {
namespace {

/// The distance between two numbers of the same sign, counted in representable float32 values.
int ulps(float a, float b) {
  return std::abs(std::bit_cast<int32_t>(a) - std::bit_cast<int32_t>(b));
}

Json load_cases() {
  const Result<std::string> text = read_file(SHOAL_TEST_DATA "/rope/cases.json", 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  const Result<Json> cases = parse_json(text.ok() ? *text : "[]", "cases.json");
  EXPECT_TRUE(cases.ok()) << cases.status().to_string();
  return cases.ok() ? *cases : Json::array();
}

TEST(RopeTest, FrequenciesAreTransformersOwn) {
  const Json cases = load_cases();
  ASSERT_GE(cases.size(), 10u);
  size_t equal = 0, total = 0;
  for (const Json& test : cases) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const Result<ModelConfig> model = parse_model_config(test["config"].dump(), "config.json");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    ASSERT_EQ(model->head_dim, test["head_dim"].get<int>());
    float factor = 0;
    const std::vector<float> freq =
        rope_inv_freq(model->rope, model->head_dim, model->max_position_embeddings, &factor);
    const auto expected = test["inv_freq"].get<std::vector<float>>();
    ASSERT_EQ(freq.size(), expected.size());
    for (size_t i = 0; i < freq.size(); ++i) {
      // torch's powf is sometimes off by one unit in the last place, and the steps after it can
      // turn that into three.
      EXPECT_LE(ulps(freq[i], expected[i]), 3) << i << ": " << freq[i] << " and " << expected[i];
      equal += freq[i] == expected[i];
      ++total;
    }
    EXPECT_EQ(factor, test["attention_factor"].get<float>());
  }
  EXPECT_GE(equal * 100, total * 90) << equal << " of " << total << " are equal bits";
}

TEST(RopeTest, AnglesAreTransformersOwn) {
  for (const Json& test : load_cases()) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const auto freq = test["inv_freq"].get<std::vector<float>>();
    const float factor = test["attention_factor"].get<float>();
    std::vector<float> cos(freq.size()), sin(freq.size());
    for (const Json& angle : test["angles"]) {
      rope_angles(freq, factor, angle["position"].get<int>(), cos.data(), sin.data());
      const auto expected_cos = angle["cos"].get<std::vector<float>>();
      const auto expected_sin = angle["sin"].get<std::vector<float>>();
      for (size_t i = 0; i < freq.size(); ++i) {
        // Allows one rounding here, one in torch's vectorised cosine, and that of the attention
        // factor.
        EXPECT_NEAR(cos[i], expected_cos[i], 2.5e-7 * factor) << i << " at " << angle["position"];
        EXPECT_NEAR(sin[i], expected_sin[i], 2.5e-7 * factor) << i << " at " << angle["position"];
      }
    }
  }
}

TEST(RopeTest, PositionZeroIsTheIdentityTimesTheFactor) {
  const std::vector<float> freq = {1.0f, 0.25f};
  float cos[2], sin[2];
  rope_angles(freq, 1.5f, 0, cos, sin);
  EXPECT_EQ(cos[0], 1.5f);
  EXPECT_EQ(cos[1], 1.5f);
  EXPECT_EQ(sin[0], 0.0f);
  EXPECT_EQ(sin[1], 0.0f);
}

TEST(RopeTest, ParametersOfBothSpellingsAndNestedOnesReadAlike) {
  const auto freq = [](const std::string& fields) {
    const Result<Json> config = parse_json("{" + fields + "}", "config.json");
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    const Result<RopeConfig> rope = parse_rope_config(*config, 8192, "config.json");
    EXPECT_TRUE(rope.ok()) << rope.status().to_string();
    float factor = 0;
    return rope.ok() ? rope_inv_freq(*rope, 16, 8192, &factor) : std::vector<float>();
  };
  const auto old_spelling =
      freq(R"("rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})");
  EXPECT_EQ(old_spelling,
            freq(R"("rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0})"));
  EXPECT_EQ(old_spelling,
            freq(R"("rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5})"));
  EXPECT_EQ(old_spelling, freq(R"("rope_parameters": {"rope_theta": 5e5},
                                   "rope_scaling": {"type": "linear", "factor": 2})"));
  const std::string one = R"({"rope_type": "linear", "factor": 2, "rope_theta": 5e5})";
  EXPECT_EQ(old_spelling, freq(R"("rope_parameters": {"full_attention": )" + one +
                               R"(, "sliding_attention": )" + one + "}"));
  EXPECT_NE(old_spelling, freq(R"("rope_theta": 5e5)"));
}

TEST(RopeTest, StretchesTheContextAsTheTypeSays) {
  struct Case {
    std::string fields;
    int max_position_embeddings, wanted;
  };
  const std::vector<Case> cases = {
      {"", 4096, 4096},
      // As the model cards of Qwen2.5 and Qwen3 write it.
      {R"("rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768})",
       32768, 131072},
      {R"("rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64})",
       256, 256},
      // The length that the file gives counts if the product is shorter.
      {R"("rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64})",
       256, 256},
      {R"("rope_scaling": {"type": "yarn", "factor": 2})", 32768, 65536},
      {R"("rope_scaling": {"type": "yarn", "original_max_position_embeddings": 7})", 100, 100},
      {R"("rope_scaling": {"type": "linear", "factor": 4})", 4096, 16384},
      {R"("rope_scaling": {"type": "linear", "factor": 1.15})", 100, 115},
      {R"("rope_scaling": {"type": "linear", "factor": 2.5})", 33, 82},
      {R"("rope_scaling": {"type": "linear", "factor": 0.5})", 4096, 4096},
      {R"("rope_scaling": {"type": "linear", "factor": 1000000})", 4096, 64 << 20},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
           "high_freq_factor": 4, "original_max_position_embeddings": 8192})",
       131072, 131072},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.fields);
    const Result<Json> config = parse_json("{" + test.fields + "}", "config.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    const Result<RopeConfig> rope =
        parse_rope_config(*config, test.max_position_embeddings, "config.json");
    ASSERT_TRUE(rope.ok()) << rope.status().to_string();
    EXPECT_EQ(stretched_positions(*rope, test.max_position_embeddings), test.wanted);
  }
}

struct BadRope {
  std::string fields;
  Code code;
  std::string says;
};

TEST(RopeTest, WhatIsWrongIsNamed) {
  const std::vector<BadRope> cases = {
      {R"("rope_scaling": {"type": "dynamic", "factor": 2})", Code::kUnimplemented, "\"dynamic\""},
      {R"("rope_scaling": {"rope_type": "longrope", "long_factor": []})", Code::kUnimplemented,
       "\"longrope\""},
      {R"("rope_scaling": {"rope_type": 7})", Code::kInvalidArgument, "rope_type"},
      {R"("rope_scaling": {"rope_type": "yarn", "type": "linear"})", Code::kInvalidArgument,
       "\"type\" is \"linear\""},
      {R"("rope_scaling": 2)", Code::kInvalidArgument, "\"rope_scaling\" must be an object"},
      {R"("rope_scaling": {"type": "linear"})", Code::kInvalidArgument, "\"factor\" is missing"},
      {R"("rope_scaling": {"type": "linear", "factor": 0})", Code::kInvalidArgument,
       "\"factor\" is 0"},
      {R"("rope_scaling": {"type": "linear", "factor": 1e300})", Code::kInvalidArgument,
       "\"factor\" is 1e+300"},
      {R"("rope_theta": 1)", Code::kInvalidArgument, "\"rope_theta\" is 1"},
      {R"("rope_theta": -5)", Code::kInvalidArgument, "\"rope_theta\" is -5"},
      {R"("rope_theta": "1e6")", Code::kInvalidArgument, "rope_theta"},
      {R"("partial_rotary_factor": 0.5)", Code::kUnimplemented, "partial_rotary_factor"},
      {R"("rope_parameters": {"partial_rotary_factor": 0.25})", Code::kUnimplemented,
       "partial_rotary_factor"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8})", Code::kInvalidArgument,
       "\"low_freq_factor\" is missing"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})",
       Code::kInvalidArgument, "\"high_freq_factor\" is 4"},
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 0})",
       Code::kInvalidArgument, "\"original_max_position_embeddings\" is 0"},
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": -1})",
       Code::kInvalidArgument, "\"beta_fast\""},
      {R"("rope_scaling": {"rope_type": "yarn", "factor": 8, "truncate": "no"})",
       Code::kInvalidArgument, "truncate"},
      {R"("rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}})",
       Code::kUnimplemented, "that differ between layer types"},
  };
  for (const BadRope& test : cases) {
    SCOPED_TRACE(test.fields);
    const Result<Json> config = parse_json("{" + test.fields + "}", "config.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    const Result<RopeConfig> rope = parse_rope_config(*config, 8192, "some/config.json");
    ASSERT_FALSE(rope.ok());
    EXPECT_EQ(rope.status().code(), test.code);
    const std::string text = rope.status().to_string();
    EXPECT_NE(text.find(test.says), std::string::npos) << text;
    EXPECT_NE(text.find("some/config.json"), std::string::npos) << text;
    EXPECT_EQ(text.find("not supported") != std::string::npos, test.code == Code::kUnimplemented)
        << text;
  }
}

}  // namespace
}  // namespace shoal
