// Compares StreamDecoder with Tokenizer::decode on random ids: the text must be the same, in whole
// characters only, and nothing is withdrawn.
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "tests/models/tokenizer_cases.h"

namespace shoal {
namespace {

/// Random ids: either from the whole vocabulary and a little beyond it, or mostly from its first
/// entries, which are bytes.
std::vector<int32_t> random_ids(std::mt19937& random, int32_t vocab_size) {
  const int32_t limit = random() % 2 == 0 ? vocab_size + 2 : std::min(vocab_size, 262);
  std::vector<int32_t> ids(random() % 40);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
  return ids;
}

/// The text that was pushed out after each prefix must be the beginning of that prefix's text,
/// however the sequence continues.
void check_prefixes(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                    bool skip_special) {
  StreamDecoder stream(tokenizer, skip_special);
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    out += stream.push(ids[i]);
    const std::string here = tokenizer.decode(std::span(ids).first(i + 1), skip_special);
    ASSERT_TRUE(here.starts_with(out)) << out << " is no beginning of " << here;
  }
  out += stream.finish();
  EXPECT_EQ(out, tokenizer.decode(ids, skip_special));
}

void check_random_sequences(const Tokenizer& tokenizer, uint32_t seed, int rounds) {
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const std::vector<int32_t> ids = random_ids(random, tokenizer.vocab_size());
    const bool skip_special = random() % 2 == 0;
    ASSERT_EQ(stream_decode(tokenizer, ids, skip_special), tokenizer.decode(ids, skip_special));
    if (round % 8 == 0) check_prefixes(tokenizer, ids, skip_special);
  }
}

TEST(TokenStream, EqualsDecodeOnTheOracles) {
  for (const std::string& name : oracle_cases()) {
    SCOPED_TRACE(name);
    check_random_sequences(load_oracle(name), 1, 2000);
  }
}

TEST(TokenStream, EqualsDecodeOnEveryDecoder) {
  const Json file = read_json(SHOAL_TEST_DATA "/tokenizer/cases.json");
  for (const Json& variant : file["cases"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    const auto tokenizer = Tokenizer::parse(case_tokenizer(file, variant).dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    check_random_sequences(*tokenizer, 2, 100);
  }
}

/// The ids of a text's bytes in a vocabulary with byte fallback, in which <0x00> has the id 3.
std::vector<int32_t> byte_ids(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(3 + static_cast<uint8_t>(c));
  return ids;
}

TEST(TokenStream, HoldsBytesUntilTheirRunIsDecided) {
  const Tokenizer tokenizer = load_oracle("llama2-mha-f16");
  StreamDecoder stream(tokenizer, false);
  for (const int32_t id : byte_ids("\xF0\x9F\x91\x8D")) EXPECT_EQ(stream.push(id), "");
  // Only now is it certain that the whole run is valid UTF-8.
  EXPECT_EQ(stream.push(387), "\U0001F44D" + std::string(tokenizer.piece(387)));

  StreamDecoder broken(tokenizer, false);
  EXPECT_EQ(broken.push(3 + 0xF0), "");
  EXPECT_EQ(broken.push(3 + 0x9F), "");
  EXPECT_EQ(broken.push(3 + 'A'),
            "\uFFFD\uFFFD\uFFFD");  // no further byte can repair it, so each byte gives one at once
  EXPECT_EQ(broken.push(3 + 'B'), "\uFFFD");
  EXPECT_EQ(broken.finish(), "");
}

TEST(TokenStream, HoldsHalfCharactersOfByteLevelPieces) {
  const Tokenizer tokenizer = load_oracle("llama-linear-bias-f32");
  const auto ids = tokenizer.encode("\U0001F44D", false);
  ASSERT_TRUE(ids.ok());
  ASSERT_GT(ids->size(), 1u);
  StreamDecoder stream(tokenizer, false);
  for (size_t i = 0; i + 1 < ids->size(); ++i) EXPECT_EQ(stream.push((*ids)[i]), "");
  EXPECT_EQ(stream.push(ids->back()), "\U0001F44D");
  EXPECT_EQ(stream.push(ids->front()), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(TokenStream, OutlivesItsTokenizer) {
  auto tokenizer = std::make_unique<Tokenizer>(load_oracle("qwen3-norm-yarn"));
  const auto ids = tokenizer->encode("still here", false);
  ASSERT_TRUE(ids.ok());
  StreamDecoder stream(*tokenizer, false);
  tokenizer.reset();
  StreamDecoder moved = std::move(stream);
  std::string text;
  for (const int32_t id : *ids) text += moved.push(id);
  EXPECT_EQ(text + moved.finish(), "still here");
}

}  // namespace
}  // namespace shoal
