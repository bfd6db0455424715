// Damaged, unsupported and hostile tokenizer.json files. Each must give an error that names the
// place.
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <string>

#include "tests/models/tokenizer_cases.h"

namespace shoal {
namespace {

Json small_tokenizer() {
  return Json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 5, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4}, "merges": ["a b", "ab c"]}
  })");
}

struct Damage {
  const char* name;
  std::function<void(Json&)> apply;
  Code code;
  const char* message;  ///< a part of the error's message
};

Json split(const char* regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json template_of(const Json& part, const Json& special_tokens) {
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({part})},
          {"special_tokens", special_tokens}};
}

std::vector<Damage> damages() {
  const auto set = [](const char* pointer, Json value) {
    return [pointer, value](Json& json) { json[Json::json_pointer(pointer)] = value; };
  };
  const auto bad = Code::kInvalidArgument;
  const auto not_done = Code::kUnimplemented;
  std::vector<Damage> list = {
      {"root", [](Json& j) { j = Json::array(); }, bad, "not a JSON object"},
      {"version", set("/version", "2.0"), not_done, "version \"2.0\""},
      {"no model", [](Json& j) { j.erase("model"); }, bad, "\"model\" is missing"},
      {"unigram", set("/model/type", "Unigram"), not_done, "\"Unigram\" is not supported"},
      {"wordpiece", set("/model/type", "WordPiece"), not_done, "\"WordPiece\""},
      {"dropout", set("/model/dropout", 0.1), not_done, "dropout"},
      {"prefix", set("/model/continuing_subword_prefix", "##"), not_done,
       "continuing_subword_prefix \"##\""},
      {"suffix", set("/model/end_of_word_suffix", "</w>"), not_done, "end_of_word_suffix"},
      {"flag", set("/model/fuse_unk", 3), bad, "\"fuse_unk\" must be true or false"},
      {"vocab list", set("/model/vocab", Json::array()), bad, "\"vocab\""},
      {"negative id", set("/model/vocab/a", -1), bad, "the id of \"a\""},
      {"text id", set("/model/vocab/a", "0"), bad, "the id of \"a\""},
      {"float id", set("/model/vocab/a", 0.5), bad, "the id of \"a\""},
      {"huge id", set("/model/vocab/a", 4294967295u), bad, "the id of \"a\""},
      {"2^63", set("/model/vocab/a", 9223372036854775808u), bad, "the id of \"a\""},
      {"same id", set("/model/vocab/a", 1), bad, "both have id 1"},
      {"long piece", [](Json& j) { j["model"]["vocab"][std::string(20000, 'x')] = 9; }, bad,
       "20000 B"},
      {"merge of absent", set("/model/merges/0", "a z"), bad,
       "merge 0 of \"a\" and \"z\": \"z\" is not in"},
      {"merge to absent", set("/model/merges/0", "b a"), bad, "\"ba\" is not in the vocabulary"},
      {"merge of one", set("/model/merges/0", "ab"), bad, "must be two pieces"},
      {"merge of three", set("/model/merges/0", "a b c"), bad, "must be two pieces"},
      {"mixed merges", set("/model/merges/1", Json::array({"ab", "c"})), bad, "one form"},
      {"merge pair", set("/model/merges", Json::array({Json::array({"a"})})), bad,
       "[\"a\", \"b\"]"},
      {"merges", set("/model/merges", "a b"), bad, "\"merges\" must be a list"},
      {"added", set("/added_tokens", 3), bad, "\"added_tokens\" must be a list"},
      {"added text", set("/added_tokens/0", "x"), bad, "added_tokens[0]"},
      {"added content", [](Json& j) { j["added_tokens"][0].erase("content"); }, bad,
       "\"content\" is missing"},
      {"added id", set("/added_tokens/0/id", -3), bad, "\"id\" must be"},
      {"added long", set("/added_tokens/0/content", std::string(2000, 'x')), bad, "2000 B"},
      {"normalizer", set("/normalizer", {{"type", "Precompiled"}}), not_done,
       "normalizer \"Precompiled\""},
      {"normalizer type", set("/normalizer", {{"x", 1}}), bad, "has no \"type\""},
      {"normalizer list", set("/normalizer", {{"type", "Sequence"}}), bad, "\"normalizers\""},
      {"replace", set("/normalizer", {{"type", "Replace"}, {"content", ""}}), bad, "\"pattern\""},
      {"prepend", set("/normalizer", {{"type", "Prepend"}}), bad, "\"prepend\" is missing"},
      {"pre type", set("/pre_tokenizer", {{"type", "UnicodeScripts"}}), not_done,
       "\"UnicodeScripts\" is not supported"},
      {"regex", set("/pre_tokenizer", split("(")), not_done, "the regex \"(\" cannot be used"},
      {"behavior",
       set("/pre_tokenizer",
           {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "x"}}),
       bad, "\"behavior\" must be"},
      {"metaspace", set("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}), bad,
       "one character"},
      {"contradiction",
       set("/pre_tokenizer", {{"type", "Metaspace"},
                              {"replacement", "_"},
                              {"add_prefix_space", false},
                              {"prepend_scheme", "always"}}),
       bad, "contradicts"},
      {"decoder", set("/decoder", {{"type", "WordPiece"}}), not_done, "decoder \"WordPiece\""},
      {"strip", set("/decoder", {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}}),
       bad, "\"start\""},
      {"growth",
       set("/decoder", {{"type", "Replace"},
                        {"pattern", {{"String", "a"}}},
                        {"content", std::string(999, 'a')}}),
       not_done, "times longer"},
      {"post", set("/post_processor", {{"type", "Other"}}), not_done, "post_processor \"Other\""},
      {"template", set("/post_processor", {{"type", "TemplateProcessing"}}), bad,
       "\"single\" is missing"},
      {"template token",
       set("/post_processor", template_of({{"SpecialToken", {{"id", "<s>"}}}}, Json::object())),
       bad, "special_tokens has no \"<s>\""},
      {"template id",
       set("/post_processor",
           template_of({{"SpecialToken", {{"id", "<s>"}}}}, {{"<s>", {{"ids", {99}}}}})),
       bad, "the id 99 is not in the vocabulary"},
      {"template pair",
       set("/post_processor", template_of({{"Sequence", {{"id", "B"}}}}, Json::object())), bad,
       "sequence A"},
  };
  return list;
}

TEST(TokenizerErrorsTest, AGitLfsPointerIsNamed) {
  const auto tokenizer =
      Tokenizer::parse("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.status().to_string().find("a.json is a Git LFS pointer"), std::string::npos)
      << tokenizer.status().to_string();
}

TEST(TokenizerErrors, SmallFileIsSound) {
  const auto tokenizer = Tokenizer::parse(small_tokenizer().dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(*tokenizer->encode("abc<s>ba", true), (std::vector<int32_t>{4, 5, 1, 0}));
}

TEST(TokenizerErrors, AddedTokensFollowTheLargestIdOfOneBeforeThem) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["<x>"] = 9;
  json["added_tokens"] = {
      {{"id", 9}, {"content", "<x>"}, {"special", true}, {"normalized", false}},
      {{"id", 10}, {"content", "<y>"}, {"special", true}, {"normalized", false}}};
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(*tokenizer->encode("a<y><x>", true), (std::vector<int32_t>{0, 10, 9}));
}

TEST(TokenizerErrors, EachDamageIsNamed) {
  for (const Damage& damage : damages()) {
    SCOPED_TRACE(damage.name);
    Json json = small_tokenizer();
    damage.apply(json);
    const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.status().code(), damage.code) << tokenizer.status().to_string();
    EXPECT_NE(tokenizer.status().to_string().find(damage.message), std::string::npos)
        << tokenizer.status().to_string();
    EXPECT_NE(tokenizer.status().to_string().find("t.json"), std::string::npos)
        << tokenizer.status().to_string();
  }
}

TEST(TokenizerErrors, TooManyComponentsAreRefused) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 65; ++i) json["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), Code::kUnimplemented);
}

TEST(TokenizerErrors, TextThatTheFileBlowsUpIsRefused) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 60; ++i) {
    json["normalizer"]["normalizers"].push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const auto ids = tokenizer->encode("a", false);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(tokenizer->encode("b", false).ok());
}

TEST(TokenizerErrors, RegexThatDoesNotEndIsRefused) {
  for (const char* regex : {"(a+a+)+[yz]", "(?:a|aa)+$[yz]", "a*a*a*a*a*a*a*[yz]"}) {
    SCOPED_TRACE(regex);
    Json json = small_tokenizer();
    json["pre_tokenizer"] = split(regex);
    const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    const auto ids = tokenizer->encode(std::string(5000, 'a'), false);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), Code::kResourceExhausted);
  }
}

TEST(TokenizerErrors, UnknownCharacterWithoutItsUnkToken) {
  Json json = small_tokenizer();
  json["model"]["unk_token"] = "<absent>";
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE(tokenizer->encode("abc", false).ok());
  const auto ids = tokenizer->encode("abx", false);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.status().code(), Code::kFailedPrecondition);
}

TEST(TokenizerErrors, SameNormalizedSpellingTwice) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] =
      Json::array({{{"id", 5}, {"content", "Day"}}, {{"id", 6}, {"content", "DAY"}}});
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), Code::kInvalidArgument);
}

TEST(TokenizerErrors, FilesThatAreNoTokenizer) {
  EXPECT_EQ(Tokenizer::load(SHOAL_TEST_DATA "/absent").status().code(), Code::kNotFound);
  EXPECT_EQ(Tokenizer::load(SHOAL_TEST_DATA).status().code(),
            Code::kNotFound);  // a directory without the file
  EXPECT_EQ(Tokenizer::load("/dev/zero").status().code(), Code::kInvalidArgument);
  const std::string whole = small_tokenizer().dump();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(Tokenizer::parse(whole.substr(0, bytes), "t.json").status().code(),
              Code::kInvalidArgument)
        << bytes;
  }
  EXPECT_EQ(Tokenizer::parse(std::string(100000, '['), "t.json").status().code(),
            Code::kInvalidArgument);
}

TEST(TokenizerErrors, AcceptsWhatHuggingFaceAccepts) {
  Json json = small_tokenizer();
  json["model"].erase("type");
  json["model"]["dropout"] = 0.0;
  json["model"]["merges"] = Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"})});
  json["truncation"] = {{"max_length", 1}};
  json["padding"] = {{"strategy", {{"Fixed", 8}}}};
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
  const auto tokenizer = Tokenizer::parse(json.dump(), "t.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(*tokenizer->encode("abcab", true), (std::vector<int32_t>{4, 2}));
}

}  // namespace
}  // namespace shoal
