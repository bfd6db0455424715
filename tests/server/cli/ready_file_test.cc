#include "server/cli/ready_file.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(ReadyValue, IsAJsonStringOnlyWhereALineCouldNotBeTakenApart) {
  for (const char* plain :
       {"demo", "/models/a,b=c", "HuggingFaceTB/SmolLM2-135M", "caf\xc3\xa9", ""})
    EXPECT_EQ(ready_value(plain), plain);
  EXPECT_EQ(ready_value("my model"), "\"my model\"");
  EXPECT_EQ(ready_value("a\"b"), "\"a\\\"b\"");
  EXPECT_EQ(ready_value("a\nREADY tp=9"), "\"a\\nREADY tp=9\"");
  EXPECT_EQ(ready_value("a\tb"), "\"a\\tb\"");
  EXPECT_EQ(ready_value("\x1b[31m"), "\"\\u001b[31m\"");
  EXPECT_EQ(ready_value("a\x7f"), "\"a\x7f\"");
}

}  // namespace
}  // namespace shoal
