// Oniguruma's regular expressions, run by PCRE2. The expected matches come from Oniguruma
// (tokenizers' Split) or follow from its documentation.
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include "models/tokenizer/regex.h"
#include "models/tokenizer/regex_syntax.h"

namespace shoal {
namespace {

using Found = std::vector<std::string>;

Found find(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::compile(pattern, "test");
  EXPECT_TRUE(regex.ok()) << regex.status().to_string();
  if (!regex.ok()) return {};
  WorkLimit limit;
  const auto matches = regex->find_all(text, limit);
  EXPECT_TRUE(matches.ok()) << matches.status().to_string();
  Found found;
  for (const RegexMatch& match : matches.ok() ? *matches : std::vector<RegexMatch>()) {
    found.push_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

TEST(Regex, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(find("\\s+", "a \u180E\u3000b"), (Found{" ", "\u3000"}));  // U+180E is not white space
  EXPECT_EQ(find("[^\\s]+", "a\u180E b"), (Found{"a\u180E", "b"}));
  EXPECT_EQ(find("[\\S]", " a"), (Found{"a"}));
  EXPECT_EQ(find("\\w+", "e\u0301_\u00B2 \u2460-x"), (Found{"e\u0301_\u00B2", "x"}));
  EXPECT_EQ(find("\\bx", "e\u0301x x"), (Found{"x"}));
  EXPECT_EQ(find("\\h+", "xbeefg"), (Found{"beef"}));
  EXPECT_EQ(find("[\\h]+\\H", "xbeefg"), (Found{"beefg"}));
  EXPECT_EQ(find("a.b", "a\nb a\rb"), (Found{"a\rb"}));
  EXPECT_EQ(find("(?m:a.b)", "a\nb"), (Found{"a\nb"}));
  EXPECT_EQ(find("^b$", "a\nb\nc"), (Found{"b"}));
  EXPECT_EQ(find("a{,2}b", "aaab"), (Found{"aab"}));
  EXPECT_EQ(find("a{2}+", "aaaaa"), (Found{"aaaa"}));  // repeated, not possessive
  EXPECT_EQ(find("(?:ab){1,2}+c", "ababababc"), (Found{"ababababc"}));
  EXPECT_EQ(find("xa{2}?y", "xy xaay"), (Found{"xy", "xaay"}));  // optional, not lazy
  EXPECT_EQ(find("a{x", "a{x"), (Found{"a{x"}));
  EXPECT_EQ(find("[a[bc]d]+", "abcdx"), (Found{"abcd"}));
  EXPECT_EQ(find("[]a]+", "a]"), (Found{"a]"}));
  EXPECT_EQ(find("[[:alpha:]]+", "a\u00E91"), (Found{"a\u00E9"}));
  EXPECT_EQ(find("\\p{Han}+", "\u3001\u65E5\u672C"),
            (Found{"\u65E5\u672C"}));  // the script property, without its extensions
  EXPECT_EQ(find("\\p{^L}", "a1"), (Found{"1"}));
  EXPECT_EQ(find("\\P{Letter}", "a1"), (Found{"1"}));
  EXPECT_EQ(find("\\u00e9|\\x{65E5}|\\x41", "A\u00E9\u65E5"), (Found{"A", "\u00E9", "\u65E5"}));
  EXPECT_EQ(find("(?i:'s|'k)", "'\u017F 'K '\u212A"), (Found{"'\u017F", "'K", "'\u212A"}));
  EXPECT_EQ(find("(?<=a)b|(?<!a)c|d(?!e)|f(?=g)", "abcdefg"), (Found{"b", "c", "f"}));
  EXPECT_EQ(find("(?<q>a)\\k<q>|(?#note)(?>b+)b", "aabb"), (Found{"aa"}));
}

TEST(Regex, EmptyMatchesAreFoundOnceAndNotBehindAnother) {
  const auto regex = Regex::compile("x*", "test");
  ASSERT_TRUE(regex.ok());
  WorkLimit limit;
  const auto matches = regex->find_all("axx\u00E9", limit);
  ASSERT_TRUE(matches.ok());
  std::vector<std::pair<size_t, size_t>> bounds;
  for (const RegexMatch& match : *matches) bounds.emplace_back(match.begin, match.end);
  // As in onig's find_iter, the empty match at 3, where "xx" ends, is left out.
  EXPECT_EQ(bounds, (std::vector<std::pair<size_t, size_t>>{{0, 0}, {1, 3}, {5, 5}}));
  EXPECT_EQ(find("", ""), (Found{""}));
}

TEST(Regex, MatchesFarApartAreFoundAcrossWindows) {
  const std::string gap(10000, '-');
  const std::string wide = "\u65E5";
  std::string text;
  for (int i = 0; i < 1000; ++i) text += wide;
  EXPECT_EQ(find("x\\d", gap + "x1" + gap + "x2"), (Found{"x1", "x2"}));
  EXPECT_EQ(find("y|z$", text + "z"), (Found{"z"}));
}

TEST(Regex, DeepNestingUsesTheHeapAndNotTheStack) {
  const std::string text(200000, 'a');
  EXPECT_EQ(find("(?:a|b)+", text), (Found{text}));
}

TEST(Regex, RefusesWhatOnlyOneEngineHas) {
  for (const char* pattern : {"(*UTF)a", "a(?{x})", "[a&&b]", "(?<a>x)\\g<a>", "(?R)", "(?|a|b)",
                              "(?P<n>a)", "(?C1)a", "\\Qa\\E", "\\xE3\\x81", "[a[^b]]", "[\\W]",
                              "\\Gx", "\\pL", "(", "a**", "[z-a]", "\\p{Nonsense}", "\\"}) {
    SCOPED_TRACE(pattern);
    const auto regex = Regex::compile(pattern, "test");
    ASSERT_FALSE(regex.ok());
    EXPECT_EQ(regex.status().code(), Code::kUnimplemented);
    EXPECT_NE(regex.status().to_string().find("test"), std::string::npos);
  }
}

}  // namespace
}  // namespace shoal
