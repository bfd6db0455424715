// Tests the values of flags: sizes, numbers, ids, choices.
#include "runtime/base/text_values.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

struct SizeCase {
  const char* text;
  uint64_t bytes;
};

TEST(SizeTest, AcceptsPowersOf1024InAnyCase) {
  constexpr SizeCase kCases[] = {
      {"0", 0},
      {"1", 1},
      {"1048576", 1 << 20},
      {"64b", 64},
      {"64B", 64},
      {"1k", 1 << 10},
      {"1K", 1 << 10},
      {"1KB", 1 << 10},
      {"1KiB", 1 << 10},
      {"512M", 512 << 20},
      {"4g", 4ull << 30},
      {"4GiB", 4ull << 30},
      {"4gIb", 4ull << 30},
      {"2t", 2ull << 40},
      {"3Ti", 3ull << 40},
      {"9223372036854775807", INT64_MAX},
      {"8388607t", 8388607ull << 40},
  };
  for (const SizeCase& c : kCases) {
    const Result<uint64_t> size = parse_size_flag("--kv-cache-memory", c.text);
    ASSERT_TRUE(size.ok()) << c.text << ": " << size.status().to_string();
    EXPECT_EQ(*size, c.bytes) << c.text;
  }
}

TEST(SizeTest, RefusesEverythingElseAndSaysWhat) {
  for (const char* text : {"", "k", "g4", "-1", "+1", "1.5g", "1e9", "0x10", "4 g", " 4g", "4g ",
                           "4gg", "4gb/s", "4p", "4ki b", "9223372036854775808", "8388608t",
                           "99999999999999999999", "18446744073709551616g"}) {
    const Result<uint64_t> size = parse_size_flag("--kv-cache-memory", text);
    ASSERT_FALSE(size.ok()) << text << " gave " << *size;
    EXPECT_EQ(size.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(size.status().to_string().find("--kv-cache-memory must be a size such as"),
              std::string::npos);
    EXPECT_EQ(size.status().to_string().find('\n'), std::string::npos);
  }
}

TEST(IntTest, ChecksBounds) {
  EXPECT_EQ(*parse_int_flag("--n", "7", 1, 10), 7);
  EXPECT_EQ(*parse_int_flag("--n", "+7", 1, 10), 7);
  EXPECT_EQ(*parse_int_flag("--n", "-3", -5, 10), -3);
  for (const char* text :
       {"", "0", "11", "7.0", "7x", "x", "99999999999999999999", "+-7", "--7", " 7"}) {
    const Result<int64_t> number = parse_int_flag("--n", text, 1, 10);
    ASSERT_FALSE(number.ok()) << text;
    EXPECT_NE(number.status().message().find("--n must be a whole number in [1, 10], not "),
              std::string::npos)
        << text;
  }
}

TEST(SeedTest, TakesAll64Bits) {
  EXPECT_EQ(*parse_seed_flag("--seed", "18446744073709551615"), UINT64_MAX);
  for (const char* text : {"18446744073709551616", "-1"}) {
    const Result<uint64_t> seed = parse_seed_flag("--seed", text);
    ASSERT_FALSE(seed.ok()) << text;
    EXPECT_NE(seed.status().message().find("--seed must be a whole number in [0, 2^64 - 1], not "),
              std::string::npos)
        << seed.status().message();
  }
}

TEST(NumberTest, IsFinite) {
  EXPECT_EQ(*parse_number_flag("--top-p", "0.9"), 0.9);
  EXPECT_EQ(*parse_number_flag("--top-p", "-1.5e-3"), -1.5e-3);
  for (const char* text : {"", "nan", "inf", "-inf", "1e999", "0.9x", "0,9", "."}) {
    EXPECT_FALSE(parse_number_flag("--top-p", text).ok()) << text;
  }
}

TEST(IdsTest, ReadsLists) {
  EXPECT_EQ(*parse_ids_flag("--ids", "1,2,3"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(*parse_ids_flag("--ids", " 1 , 2147483647 "), (std::vector<int64_t>{1, 2147483647}));
  for (const char* text : {"", ",", "1,", ",1", "1,,2", "-1", "2147483648", "1;2", "1 2", "a"}) {
    EXPECT_FALSE(parse_ids_flag("--ids", text).ok()) << text;
  }
}

TEST(NearestWordTest, FindsTyposAndNothingElse) {
  const std::vector<std::string> words = {"serve", "generate", "logits", "--max-tokens",
                                          "--max-num-seqs"};
  EXPECT_EQ(nearest_word("genrate", words), "generate");
  EXPECT_EQ(nearest_word("--max-token", words), "--max-tokens");
  EXPECT_EQ(nearest_word("xyz", words), "");
  EXPECT_EQ(nearest_word(std::string(100000, 'x'), words), "");
}

TEST(ShownTest, StaysOneShortLine) {
  EXPECT_EQ(shown("a\nb\tc"), "\"a?b?c\"");
  EXPECT_LT(shown(std::string(100000, 'x')).size(), 100u);
}

TEST(TextValues, OthersTextCannotForgeALine) {
  EXPECT_EQ(printable("a b.txt"), "a b.txt");
  EXPECT_EQ(printable("x\nOK: y\x1b[31m\x7f"), "x?OK: y?[31m?");
  EXPECT_EQ(printable("\u009b31m \u202e \u2066 \u00e9 \u20ac"), "?31m ? ? \u00e9 \u20ac");
  EXPECT_EQ(printable("a\u2028b\u2029c\u2027"), "a?b?c\u2027") << "separators of lines";
  EXPECT_EQ(printable("\xC2"), "\xC2") << "cut off, and no control character";
}

}  // namespace
}  // namespace shoal
