#include "runtime/base/json.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(ParseJsonTest, Reads) {
  const Result<Json> json =
      parse_json(R"({"a": [1, 2.5, "x", null, true], "b": {"c": -3}, "a": "last"})", "x.json");
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)["a"], "last");
  EXPECT_EQ((*json)["b"]["c"], -3);
}

TEST(ParseJsonTest, DamageIsPlaced) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\" 1}", "nul", "\"open", "1 2", "{\"a\":1}x",
                           "\"\xff\"", "\"\\ud800\"", "NaN", "1e999", "\x01", "// c\n1"}) {
    const Result<Json> json = parse_json(text, "x.json");
    ASSERT_FALSE(json.ok()) << text;
    const Status status = json.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    const bool is_number = std::string_view(text) == "1e999";
    EXPECT_TRUE(
        status.message().starts_with(is_number ? "x.json: byte " : "x.json: not JSON at byte "))
        << status.to_string();
    EXPECT_EQ(status.message().find("syntax error"), std::string::npos) << status.to_string();
    // Error messages are sent in protobuf strings, so they must be UTF-8 without control
    // characters, whatever the text held.
    for (const char c : status.message()) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << status.to_string();
    EXPECT_LT(status.message().size(), 400u);
    EXPECT_EQ(status.message().find("json.exception"), std::string::npos) << status.to_string();
  }
}

TEST(ParseJsonTest, DamageIsSaidInFewWords) {
  EXPECT_EQ(parse_json("nonsense", "x").status().message(),
            "x: not JSON at byte 2: invalid literal");
}

TEST(ParseJsonTest, ANumberThatIsTooLargeIsShown) {
  EXPECT_EQ(parse_json(R"({"a":-1e400})", "x").status().message(),
            "x: byte 11: the number -1e400 is too large");
  EXPECT_EQ(parse_json(std::string(400, '9'), "x").status().message(),
            cat("x: byte 400: the number ", std::string(40, '9'), "... is too large"));
}

TEST(ParseJsonTest, DepthAndValuesAreBounded) {
  EXPECT_TRUE(parse_json(nested(64), "x").ok());
  const Result<Json> deep = parse_json(nested(65), "x");
  ASSERT_FALSE(deep.ok());
  EXPECT_EQ(deep.status().message(), "x: nested deeper than 64");
  EXPECT_FALSE(parse_json(std::string(10'000'000, '['), "x").ok());
  EXPECT_FALSE(parse_json(nested(3), "x", {.max_depth = 2}).ok());

  EXPECT_TRUE(parse_json("[1,2,3]", "x", {.max_values = 4}).ok());
  const Result<Json> many = parse_json("[1,2,3]", "x", {.max_values = 3});
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().message(), "x: more than 3 values");
  // Keys take memory too, so they count.
  EXPECT_FALSE(parse_json(R"({"a":{},"b":{}})", "x", {.max_values = 4}).ok());
}

TEST(ParseJsonTest, NamesMayHaveToBeDistinct) {
  const JsonLimits distinct{.distinct_names = true};
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})", "x", distinct).ok());
  const Result<Json> twice = parse_json(R"({"b":{"a":1,"c":2,"a":1}})", "x", distinct);
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.status().message(), "x: \"a\" stands twice in one object");
}

TEST(JsonMemberTest, Integers) {
  const Json object = {{"five", 5},        {"whole", 5.0}, {"half", 5.5}, {"big", UINT64_MAX},
                       {"low", INT64_MIN}, {"huge", 1e18}, {"text", "5"}, {"none", nullptr}};
  EXPECT_EQ(*json_int(object, "five", "x"), 5);
  EXPECT_EQ(*json_int(object, "whole", "x"), 5);
  EXPECT_EQ(*json_int(object, "low", "x"), INT64_MIN);
  EXPECT_EQ(*json_int(object, "none", "x"), std::nullopt);
  EXPECT_EQ(*json_int(object, "absent", "x"), std::nullopt);
  for (const char* key : {"half", "big", "huge", "text"}) {
    const auto value = json_int(object, key, "x.json");
    ASSERT_FALSE(value.ok()) << key;
    EXPECT_EQ(value.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(
        value.status().message().starts_with(cat("x.json: \"", key, "\" must be an integer")))
        << value.status().to_string();
  }
}

TEST(JsonMemberTest, OtherTypes) {
  const Json object = {
      {"number", 2}, {"text", "t"}, {"flag", false}, {"none", nullptr}, {"list", {1, 2}}};
  EXPECT_EQ(*json_double(object, "number", "x"), 2.0);
  EXPECT_EQ(*json_bool(object, "flag", "x"), false);
  EXPECT_EQ(*json_string(object, "text", "x"), "t");
  EXPECT_EQ(*json_double(object, "none", "x"), std::nullopt);
  EXPECT_EQ(*json_bool(object, "absent", "x"), std::nullopt);
  EXPECT_EQ(*json_string(object, "none", "x"), std::nullopt);
  EXPECT_EQ(json_double(object, "list", "x").status().message(),
            "x: \"list\" must be a number, not [1,2]");
  EXPECT_EQ(json_bool(object, "number", "x").status().message(),
            "x: \"number\" must be true or false, not 2");
  EXPECT_EQ(json_string(object, "flag", "x").status().message(),
            "x: \"flag\" must be a string, not false");
  EXPECT_EQ(*json_int(Json::array(), "any", "x"),
            std::nullopt);  // a value that is not an object has no members
}

TEST(JsonMemberTest, AHostileValueIsShortInTheMessage) {
  const Json object = {{"key", std::string(100'000, '\xff') + "\x1b[31m"}};
  const Status status = json_int(object, "key", "x").status();
  EXPECT_LT(status.message().size(), 200u);
  for (const char c : status.message()) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << status.to_string();
}

TEST(JsonText, NeverThrowsAndStaysJson) {
  const Json json = {{"caf\xe9", "\xff"}, {"list", {1, "\xc3\xa9"}}};
  const std::string text = json_text(json);
  EXPECT_EQ(text, "{\"caf\xEF\xBF\xBD\":\"\xEF\xBF\xBD\",\"list\":[1,\"\xc3\xa9\"]}");
  EXPECT_TRUE(parse_json(text, "text").ok());
  EXPECT_EQ(json_text(Json{1}, 2), "[\n  1\n]");
}

class ReadFileTest : public testing::Test {
 protected:
  ReadFileTest() : dir_(testing::TempDir() + "/shoal-read-" + std::to_string(getpid())) {
    fs::create_directories(dir_);
  }
  ~ReadFileTest() override { fs::remove_all(dir_); }
  const std::string dir_;
};

TEST_F(ReadFileTest, ReadsUpToTheLimit) {
  std::ofstream(dir_ + "/f", std::ios::binary) << std::string("ab\0c", 4);
  EXPECT_EQ(*read_file(dir_ + "/f", 4), std::string("ab\0c", 4));
  const Status status = read_file(dir_ + "/f", 3).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), dir_ + "/f has 4 B; at most 3 B are read");
}

TEST_F(ReadFileTest, WhatCannotBeRead) {
  EXPECT_EQ(read_file(dir_ + "/absent", 9).status().code(), Code::kNotFound);
  EXPECT_EQ(read_file(dir_, 9).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_file(dir_ + "/fifo", 9).status().code(),
            Code::kInvalidArgument);  // a pipe is refused without waiting for its writer
  EXPECT_EQ(read_file("/dev/zero", 9).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal
