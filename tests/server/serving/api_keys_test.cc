#include "server/serving/api_keys.h"

#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

namespace shoal {
namespace {

TEST(ApiKeys, WithoutKeysEverybodyMayPass) {
  EXPECT_TRUE(ApiKeys().allow(""));
  EXPECT_FALSE(ApiKeys().any());
}

TEST(ApiKeys, AWholeKeyIsNeeded) {
  ApiKeys keys({"secret", "other"});
  EXPECT_TRUE(keys.allow("Bearer secret"));
  EXPECT_TRUE(keys.allow("bearer other"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer secre", "Bearer secretsecret",
                            "Bearer Secret", "secret", "Basic secret", "Bearer  secret"})
    EXPECT_FALSE(keys.allow(wrong)) << wrong;
  keys.replace({"new"});
  EXPECT_FALSE(keys.allow("Bearer secret"));
  EXPECT_TRUE(keys.allow("Bearer new"));
}

TEST(ApiKeys, AFileHasOneOnEachLine) {
  char path[] = "/tmp/shoal-keys-XXXXXX";
  const int file = ::mkstemp(path);
  const auto write = [&](const std::string& text) {
    ASSERT_EQ(::ftruncate(file, 0), 0);
    ASSERT_EQ(::pwrite(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  };
  write("# team\n\n one \r\ntwo");
  EXPECT_EQ(*read_api_keys(path), (std::vector<std::string>{"one", "two"}));
  write("# nobody\n");
  EXPECT_EQ(read_api_keys(path).status().code(), Code::kInvalidArgument);
  write("one\nsecond key\n");
  const Status blank = read_api_keys(path).status();
  EXPECT_NE(blank.message().find("line 2"), std::string_view::npos) << blank.to_string();
  EXPECT_EQ(blank.to_string().find("second"), std::string::npos) << "no message shows a key";
  ::close(file);
  ::unlink(path);
  EXPECT_EQ(read_api_keys(path).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
