#include "server/commands/reread.h"

#include <gtest/gtest.h>
#include <string>

namespace shoal {
namespace {

/// A fake file, and what is done with it.
struct Fake {
  std::string file = "good 1";
  bool readable = true;
  std::string used = "good 1";
  Reread<std::string> reread{file,
                             [this]() -> Result<std::string> {
                               if (readable) return file;
                               return Status::error(Code::kNotFound, "it is gone");
                             },
                             [this](const std::string& text) -> Status {
                               if (!text.starts_with("good"))
                                 return Status::error(Code::kInvalidArgument, "it is not good");
                               used = text;
                               return {};
                             }};
};

TEST(Reread, AChangeIsUsedOnce) {
  Fake fake;
  EXPECT_FALSE(fake.reread.look(false).replaced);
  fake.file = "good 2";
  EXPECT_TRUE(fake.reread.look(false).replaced);
  EXPECT_EQ(fake.used, "good 2");
  EXPECT_FALSE(fake.reread.look(false).replaced);
}

TEST(Reread, WhatMayBeHalfWrittenIsRefusedAtTheSecondLook) {
  Fake fake;
  fake.file = "bad";
  EXPECT_TRUE(fake.reread.look(false).refused.ok());
  EXPECT_FALSE(fake.reread.look(false).refused.ok());
  EXPECT_TRUE(fake.reread.look(false).refused.ok()) << "once for each change";
  EXPECT_TRUE(fake.reread.look(true).refused.ok());
  EXPECT_EQ(fake.used, "good 1");
  fake.file = "bad too";
  EXPECT_TRUE(fake.reread.look(false).refused.ok());
  fake.file = "good 2";
  EXPECT_TRUE(fake.reread.look(false).replaced);
  EXPECT_EQ(fake.used, "good 2");
}

TEST(Reread, WhatIsSaidToBeCompleteIsRefusedAtOnce) {
  Fake fake;
  fake.file = "bad";
  EXPECT_FALSE(fake.reread.look(true).refused.ok());
  EXPECT_TRUE(fake.reread.look(true).refused.ok());
  fake.file = "good 1";
  EXPECT_FALSE(fake.reread.look(true).replaced) << "it is what is used";
  fake.file = "bad";
  EXPECT_FALSE(fake.reread.look(true).refused.ok()) << "it is a change again";
}

TEST(Reread, AFileThatIsGoneForAMomentIsNoNews) {
  Fake fake;
  fake.readable = false;
  EXPECT_TRUE(fake.reread.look(false).refused.ok());
  fake.readable = true;
  EXPECT_TRUE(fake.reread.look(false).refused.ok());
  fake.readable = false;
  EXPECT_TRUE(fake.reread.look(false).refused.ok());
  EXPECT_EQ(fake.reread.look(false).refused.code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
