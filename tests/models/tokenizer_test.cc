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
    EXPECT_EQ(stream_decode(tokenizer, ids, true),
              entry["text_without_special"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Oracle, testing::ValuesIn(oracle_cases()), [](const auto& oracle) {
  std::string name = oracle.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

/// Small variants of every component, compared with the answers of Hugging Face
/// (make_tokenizer_cases.py).
TEST(Tokenizer, VariantsEncodeAndDecodeAsHuggingFace) {
  const Json file = read_json(SHOAL_TEST_DATA "/tokenizer/cases.json");
  const auto texts = file["texts"].get<std::vector<std::string>>();
  ASSERT_GT(file["cases"].size(), 50u);
  for (const Json& variant : file["cases"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto tokenizer = Tokenizer::parse(case_tokenizer(file, variant).dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    ASSERT_EQ(variant["encode"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const Json& whole = variant["encode"][i][0];
      const Json& bare = variant["encode"][i][1].is_null() ? whole : variant["encode"][i][1];
      for (const bool add_special : {true, false}) {
        const auto ids = tokenizer->encode(texts[i], add_special);
        ASSERT_TRUE(ids.ok()) << ids.status().to_string();
        EXPECT_EQ(*ids, (add_special ? whole : bare).get<std::vector<int32_t>>()) << texts[i];
      }
    }
    for (const Json& entry : variant["decode"]) {
      const auto ids = entry[0].get<std::vector<int32_t>>();
      const auto whole = entry[1].get<std::string>();
      const auto bare = entry[2].is_null() ? whole : entry[2].get<std::string>();
      EXPECT_EQ(tokenizer->decode(ids, false), whole);
      EXPECT_EQ(tokenizer->decode(ids, true), bare);
      EXPECT_EQ(stream_decode(*tokenizer, ids, false), whole);
      EXPECT_EQ(stream_decode(*tokenizer, ids, true), bare);
    }
  }
}

TEST(Tokenizer, AllSevenOraclesAreThere) {
  EXPECT_EQ(oracle_cases().size(), 7u);
}

TEST(Tokenizer, NamesPiecesAndSpecialTokens) {
  const Tokenizer tokenizer = load_oracle("llama2-mha-f16");
  EXPECT_EQ(tokenizer.vocab_size(), 900);
  EXPECT_EQ(tokenizer.piece(1), "<s>");
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_EQ(tokenizer.piece(3), "<0x00>");
  EXPECT_FALSE(tokenizer.is_special(3));
  EXPECT_EQ(tokenizer.piece(900), "");
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{-1, 900, INT32_MAX, INT32_MIN}, false), "");
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const Tokenizer tokenizer = load_oracle("llama-linear-bias-f32");
  // The examples of The Unicode Standard, tables 3-8 to 3-11, and a lone surrogate.
  const std::pair<std::string, std::string> pairs[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
      {"\xED\xA0\x80"
       "A",
       "\uFFFD\uFFFD\uFFFD"
       "A"},
      {"\xF4\x91\x92\x93\xFF"
       "A\x80\xBF"
       "B",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
       "A\uFFFD\uFFFD"
       "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
      {"end\xF0\x9F\x91", "end\uFFFD"},
  };
  for (const auto& [bytes, text] : pairs) {
    const auto ids = tokenizer.encode(bytes, false);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(tokenizer.decode(*ids, false), text);
    EXPECT_EQ(*ids, *tokenizer.encode(text, false));
  }
}

/// A merge queue or a sort of combining marks that scans everything again for each step would need
/// hours for these texts.
TEST(Tokenizer, LongTextsOfOnePieceAreNotQuadratic) {
  constexpr size_t kBytes = 1'000'000;
  std::string marks = "a";
  while (marks.size() < kBytes) marks += "\u0301\u0323";
  const std::string texts[] = {std::string(kBytes, 'a'), std::string(kBytes, ' ') + "x",
                               std::string(kBytes, '\n'), marks};
  for (const char* name : {"llama2-mha-f16", "llama3-gqa-tied-sharded", "qwen2-bias-uneven"}) {
    const Tokenizer tokenizer = load_oracle(name);
    for (size_t i = 0; i < 3; ++i) {
      const auto ids = tokenizer.encode(texts[i], false);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      EXPECT_EQ(tokenizer.decode(*ids, false), texts[i]);
    }
    ASSERT_TRUE(tokenizer.encode(texts[3], false).ok());
  }
}

}  // namespace
}  // namespace shoal
