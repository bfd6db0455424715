#include "models/generation_config.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

#include "models/model_config.h"

namespace shoal {
namespace {

GenerationConfig parsed_defaults(const std::string& text) {
  const Result<GenerationConfig> config = parse_generation_config(text, "generation_config.json");
  EXPECT_TRUE(config.ok()) << text << "\n" << config.status().to_string();
  return config.ok() ? *config : GenerationConfig();
}

TEST(GenerationConfigTest, Qwen25AsPublished) {
  const GenerationConfig config =
      parsed_defaults(R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
    "transformers_version": "4.37.0"})");
  EXPECT_EQ(config.temperature, 0.7f);
  EXPECT_EQ(config.top_p, 0.8f);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.repetition_penalty, 1.05f);
  EXPECT_FALSE(config.min_p.has_value());
  EXPECT_EQ(config.eos_token_ids, (std::vector<int32_t>{151645, 151643}));
}

TEST(GenerationConfigTest, AbsentFieldsStayUnset) {
  for (const char* text :
       {"{}", R"({"temperature": null, "top_p": null, "top_k": null, "eos_token_id": null})"}) {
    const GenerationConfig config = parsed_defaults(text);
    EXPECT_FALSE(config.temperature || config.top_p || config.top_k || config.min_p ||
                 config.repetition_penalty);
    EXPECT_TRUE(config.eos_token_ids.empty());
  }
}

TEST(GenerationConfigTest, DoSample) {
  EXPECT_EQ(parsed_defaults(R"({"do_sample": false})").temperature, 0.0f);
  EXPECT_EQ(parsed_defaults(R"({"do_sample": false, "top_p": 0.9})").temperature, 0.0f);
  EXPECT_EQ(parsed_defaults(R"({"do_sample": false, "temperature": 0.6})").temperature, 0.6f);
  EXPECT_FALSE(parsed_defaults(R"({"do_sample": true})").temperature.has_value());
}

TEST(GenerationConfigTest, TopKOffIsZero) {
  EXPECT_EQ(parsed_defaults(R"({"top_k": -1})").top_k, 0);
  EXPECT_EQ(parsed_defaults(R"({"top_k": 0})").top_k, 0);
}

TEST(GenerationConfigTest, ImpossibleValuesAreNamed) {
  for (const char* field :
       {R"("temperature": -0.1)", R"("temperature": 1e30)", R"("temperature": "hot")",
        R"("top_p": 0)", R"("top_p": 1.5)", R"("top_k": -2)", R"("top_k": 4294967296)",
        R"("min_p": -1)", R"("min_p": 2)", R"("repetition_penalty": 0)",
        R"("repetition_penalty": 1e-300)", R"("eos_token_id": "x")", R"("do_sample": "yes")"}) {
    SCOPED_TRACE(field);
    const Result<GenerationConfig> config =
        parse_generation_config("{" + std::string(field) + "}", "dir/gen.json");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_NE(config.status().to_string().find(name), std::string::npos)
        << config.status().to_string();
    EXPECT_NE(config.status().to_string().find("dir/gen.json"), std::string::npos);
  }
  EXPECT_FALSE(parse_generation_config("[]", "x").ok());
  EXPECT_FALSE(parse_generation_config("", "x").ok());
}

TEST(GenerationConfigTest, FromADirectory) {
  const std::string dir = testing::TempDir() + "/shoal-generation-" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const Result<GenerationConfig> absent = load_generation_config(dir);
  ASSERT_TRUE(absent.ok()) << absent.status().to_string();
  EXPECT_FALSE(absent->temperature.has_value());
  std::ofstream(dir + "/generation_config.json") << R"({"temperature": 0.25})";
  const Result<GenerationConfig> present = load_generation_config(dir);
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_EQ(present->temperature, 0.25f);
  std::ofstream(dir + "/generation_config.json") << "{";
  EXPECT_FALSE(load_generation_config(dir).ok());
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace shoal
