#include "models/tokenizer.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/models/tokenizer_cases.h"

namespace shoal {
namespace {

class Oracle : public testing::TestWithParam<std::string> {};

TEST_P(Oracle, EncodesAsHuggingFace) {
  const Tokenizer tokenizer = load_oracle(GetParam());
  const Json expected = read_json(oracle_dir(GetParam()) + "/expected.json");
  ASSERT_GT(expected["tokenize"].size(), 50u);
  for (const Json& entry : expected["tokenize"]) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = tokenizer.encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(*ids, entry["ids"].get<std::vector<int32_t>>()) << text;
    const auto bare = tokenizer.encode(text, false);
    ASSERT_TRUE(bare.ok()) << bare.status().to_string();
    EXPECT_EQ(*bare, entry["ids_without_special"].get<std::vector<int32_t>>()) << text;
  }
}

TEST_P(Oracle, DecodesAsHuggingFace) {
  const Tokenizer tokenizer = load_oracle(GetParam());
  const Json expected = read_json(oracle_dir(GetParam()) + "/expected.json");
  ASSERT_GT(expected["detokenize"].size(), 50u);
  for (const Json& entry : expected["detokenize"]) {
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.decode(ids, false), entry["text"].get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), entry["text_without_special"].get<std::string>());
    EXPECT_EQ(stream_decode(tokenizer, ids, false), entry["text"].get<std::string>());
    EXPECT_EQ(stream_decode(tokenizer, ids, true), entry["text_without_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Oracle, testing::ValuesIn(oracle_cases()), [](const auto& oracle) {
  std::string name = oracle.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST(Tokenizer, AllSevenOraclesAreThere) {
  EXPECT_EQ(oracle_cases().size(), 7u);
}

}  // namespace
}  // namespace shoal
