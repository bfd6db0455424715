#include "server/serving/text_output.h"

#include <gtest/gtest.h>
#include <random>

#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

struct Expected {
  std::string text;
  std::string stop;
};

/// The definition: the first position at which a stop string ends, and the longest of several that
/// end there.
Expected naive_cut(const std::string& text, const std::vector<std::string>& stop, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& s : stop) {
      const bool ends_here = end >= s.size() && text.compare(end - s.size(), s.size(), s) == 0;
      if (ends_here && s.size() > longest.size()) longest = s;
    }
    if (!longest.empty()) return {text.substr(0, include ? end : end - longest.size()), longest};
  }
  return {text, ""};
}

bool is_char_boundary(const std::string& text, size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

/// Pushes the ids. Every piece must consist of whole characters of the expected text, in order.
Expected run(const std::vector<int32_t>& ids, const std::vector<std::string>& stop,
             bool include = false) {
  TextOutput output(test_model().tokenizer, stop, include);
  Expected got;
  for (const int32_t id : ids) {
    got.text += output.push(id);
    EXPECT_TRUE(got.text.empty() || is_char_boundary(got.text, got.text.size()));
    if (output.stopped()) break;
  }
  got.text += output.finish();
  got.stop = output.stop_text();
  return got;
}

TEST(StopMatcherTest, FindsEveryOverlap) {
  const auto ends_at = [](const std::string& stop, const std::string& text) {
    StopMatcher matcher(stop);
    for (size_t i = 0; i < text.size(); ++i) {
      if (matcher.push(text[i])) return static_cast<int>(i) + 1;
    }
    return -1;
  };
  EXPECT_EQ(ends_at("a", "xxa"), 3);
  EXPECT_EQ(ends_at("aab", "aaaab"), 5);
  EXPECT_EQ(ends_at("abab", "abaabab"), 7);
  EXPECT_EQ(ends_at("abcabd", "abcabcabd"), 9);
  EXPECT_EQ(ends_at("abc", "ababab"), -1);
}

TEST(TextOutputTest, WithoutStopStringsItIsTheDecodedText) {
  const std::string text = "Three fish, one shoal.\n\xC3\xA9\xE2\x82\xAC \xF0\x9F\x90\x9F!";
  EXPECT_EQ(run(ids_of_text(text), {}).text, text);
  EXPECT_EQ(run(byte_ids_of_text(text), {}).text, text);
  EXPECT_EQ(run({0, 1, 2}, {}).text, "") << "special tokens give no text";
}

TEST(TextOutputTest, MatchesAcrossTokensAndCuts) {
  const std::vector<int32_t> ids = byte_ids_of_text("one END two");
  EXPECT_EQ(run(ids, {"END"}).text, "one ");
  EXPECT_EQ(run(ids, {"END"}).stop, "END");
  EXPECT_EQ(run(ids, {"END"}, true).text, "one END");
  EXPECT_EQ(run(ids, {"absent"}).text, "one END two");
}

TEST(TextOutputTest, HoldsBackNoMoreThanABeginning) {
  TextOutput output(test_model().tokenizer, {"END", "Eve"}, false);
  std::vector<std::string> pieces;
  for (const int32_t id : byte_ids_of_text("aEEvEN.E")) pieces.push_back(output.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "E", "", "Ev", "", "EN.", ""}));
  EXPECT_EQ(output.finish(), "E");
  EXPECT_FALSE(output.stopped());
}

TEST(TextOutputTest, FirstCompleteMatchWinsThenTheLongest) {
  for (const auto& ids : {ids_of_text("abcde"), byte_ids_of_text("abcde")}) {
    EXPECT_EQ(run(ids, {"abcde", "cd"}).text, "ab");
    EXPECT_EQ(run(ids, {"d", "bcd", "cd"}).stop, "bcd");
    EXPECT_EQ(run(ids, {"d", "bcd", "cd"}).text, "a");
  }
}

TEST(TextOutputTest, NothingComesAfterAMatch) {
  TextOutput output(test_model().tokenizer, {"b"}, false);
  std::string text;
  for (const int32_t id : byte_ids_of_text("abc")) text += output.push(id);
  EXPECT_EQ(text + output.finish(), "a");
}

TEST(TextOutputTest, StopStringThatTheLastFlushCompletes) {
  // The lone lead byte becomes U+FFFD only when it is certain that no more bytes follow.
  const Expected got = run(byte_ids_of_text("x\xE2"), {"\xEF\xBF\xBD"});
  EXPECT_EQ(got.text, "x");
  EXPECT_EQ(got.stop, "\xEF\xBF\xBD");
}

TEST(TextOutputTest, SameCutHoweverTheTextIsTokenized) {
  std::mt19937 random(5);
  const std::vector<std::string> alphabet = {"a", "b", "ab", "\xC3\xA9", "\xF0\x9F\x90\x9F",
                                             " ", "\n"};
  const auto words = [&](size_t count) {
    std::string text;
    while (count-- > 0) text += alphabet[random() % alphabet.size()];
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::string text = words(1 + random() % 30);
    std::vector<std::string> stop(random() % 4);
    for (std::string& s : stop) s = words(1 + random() % 4);
    const bool include = random() % 2 == 0;
    const Expected expected = naive_cut(text, stop, include);
    for (const auto& ids : {ids_of_text(text), byte_ids_of_text(text)}) {
      const Expected got = run(ids, stop, include);
      ASSERT_EQ(got.text, expected.text) << "round " << round;
      ASSERT_EQ(got.stop, expected.stop) << "round " << round;
    }
    matches += expected.stop.empty() ? 0 : 1;
  }
  EXPECT_GT(matches, 500);
}

}  // namespace
}  // namespace shoal
