// A tokenizer without a splitter merges word by word if that gives the same ids, so that its cost
// grows linearly; and encodings that stop early.
#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <string>

#include "models/tokenizer/bpe.h"
#include "tests/models/tokenizer_cases.h"

namespace shoal {
namespace {

const std::string kWordSpace = "\xE2\x96\x81";

bool has_space_inside(const std::string& piece) {
  const size_t first = piece.find_first_not_of(kWordSpace);
  return first != std::string::npos && piece.find(kWordSpace, first) != std::string::npos;
}

/// A tokenizer without a splitter. In its vocabulary a space can only be at the beginning of a
/// piece, as in the vocabulary of Llama 2. It is made from a tokenizer that was trained without
/// this rule.
Json llama2_like() {
  Json json = read_json(oracle_dir("llama2-mha-f16") + "/tokenizer.json");
  Json vocab = Json::object(), merges = Json::array();
  for (const auto& [piece, id] : json["model"]["vocab"].items())
    if (!has_space_inside(piece)) vocab[piece] = id;
  for (const Json& merge : json["model"]["merges"]) {
    const std::string joined = merge[0].get<std::string>() + merge[1].get<std::string>();
    if (!has_space_inside(joined)) merges.push_back(merge);
  }
  EXPECT_LT(vocab.size(), json["model"]["vocab"].size());
  json["model"]["vocab"] = std::move(vocab);
  json["model"]["merges"] = std::move(merges);
  return json;
}

/// The same tokenizer with an entry that no merge makes. It is spelled so that the text is not cut.
Json never_cut(Json json) {
  Json& vocab = json["model"]["vocab"];
  vocab["never" + kWordSpace + "merged"] = 100'000;
  return json;
}

Tokenizer tokenizer_of(const Json& json) {
  auto tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

/// The lengths of the parts in which the text is merged.
std::vector<size_t> parts(const Json& json, const std::string& text) {
  const auto model = BpeModel::parse(json, "tokenizer.json");
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  std::vector<size_t> lengths;
  EXPECT_TRUE(model
                  ->for_each_part(text,
                                  [&](std::string_view part) {
                                    lengths.push_back(part.size());
                                    return Status();
                                  })
                  .ok());
  return lengths;
}

std::string random_text(std::mt19937& random) {
  static const std::string kAlphabet[] = {" ", " ",  " ",      "a",        "e", "th",
                                          "é", "\n", "\u2603", kWordSpace, ".", "\u4e2d",
                                          "t", "he", "s",      "\u0301"};
  std::string text;
  for (size_t left = random() % 60; left > 0; --left)
    text += kAlphabet[random() % std::size(kAlphabet)];
  return text;
}

TEST(TokenizerParts, WordByWordGivesTheSameIds) {
  std::mt19937 random(20261122);
  Json with_unknown = llama2_like();
  with_unknown["model"]["byte_fallback"] = false;
  Json split_unknown = with_unknown;
  split_unknown["model"]["fuse_unk"] = false;
  for (const Json& json : {llama2_like(), with_unknown, split_unknown}) {
    const Tokenizer cut = tokenizer_of(json), whole = tokenizer_of(never_cut(json));
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_text(random);
      const auto ids = cut.encode(text, true), same = whole.encode(text, true);
      ASSERT_TRUE(ids.ok() && same.ok());
      ASSERT_EQ(*ids, *same) << text;
    }
  }
}

TEST(TokenizerParts, TheWorkGrowsLinearly) {
  const Json json = llama2_like();
  std::string sentence;
  for (const char* word : {"the", "quick", "", "brown", "fox's"}) sentence += kWordSpace + word;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += sentence;
  const std::vector<size_t> once = parts(json, text), twice = parts(json, text + text);
  EXPECT_EQ(once.size(), 4000u) << "a run of spaces begins one word";
  EXPECT_EQ(twice.size(), 2 * once.size());
  // A part of n bytes takes n log n steps, so nothing grows as long as the longest one does not.
  EXPECT_LT(*std::max_element(once.begin(), once.end()), 20u);
  EXPECT_EQ(*std::max_element(once.begin(), once.end()),
            *std::max_element(twice.begin(), twice.end()));
  EXPECT_EQ(parts(never_cut(json), text), std::vector<size_t>{text.size()});
}

/// Characters that the vocabulary lacks are left out here, so that what was on both sides of one
/// meets and may be merged.
TEST(TokenizerParts, ATextIsNotCutIfCharactersMayVanish) {
  Json json = llama2_like();
  json["model"]["byte_fallback"] = false;
  json["model"]["unk_token"] = nullptr;
  const std::string text = "a" + kWordSpace + "b";
  EXPECT_EQ(parts(json, text), std::vector<size_t>{text.size()});
  const Json original = read_json(oracle_dir("llama2-mha-f16") + "/tokenizer.json");
  EXPECT_EQ(parts(original, text), std::vector<size_t>{text.size()}) << "e and a space merge";
}

TEST(TokenizerParts, AnEncodingStopsWhenItHasMoreThanEnough) {
  for (const Json& json :
       {llama2_like(), read_json(oracle_dir("llama3-gqa-tied-sharded") + "/tokenizer.json")}) {
    const Tokenizer tokenizer = tokenizer_of(json);
    std::string text;
    for (int i = 0; i < 10'000; ++i) text += "again and ";
    const auto all = tokenizer.encode(text, false);
    const auto first = tokenizer.encode(text, false, {.max_ids = 100});
    ASSERT_TRUE(all.ok() && first.ok());
    EXPECT_GT(first->size(), 100u);
    EXPECT_LT(first->size(), 200u);
    EXPECT_TRUE(std::equal(first->begin(), first->end(), all->begin()));
    EXPECT_EQ(*tokenizer.encode(text, false, {.max_ids = all->size()}), *all);

    std::atomic<bool> given_up = true;
    const auto none = tokenizer.encode(text, false, {.given_up = &given_up});
    EXPECT_EQ(none.status().code(), Code::kCancelled);
  }
}

}  // namespace
}  // namespace shoal
