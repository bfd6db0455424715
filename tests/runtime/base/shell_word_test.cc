#include "runtime/base/shell_word.h"

#include <cstdio>
#include <gtest/gtest.h>
#include <memory>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// What the machine's shell makes of the word.
std::string read_by_a_shell(const std::string& word) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(cat("printf %s. ", word).c_str(), "r"),
                                                   ::pclose);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe.get()));
  return text;
}

TEST(ShellWordTest, ChangesOnlyWhatAShellWouldChange) {
  EXPECT_EQ(shell_word("models/demo-1.5b_q4,x:y+z"), "models/demo-1.5b_q4,x:y+z");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("=lo"), "'=lo'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
}

TEST(ShellWordTest, AShellReadsTheTextBack) {
  for (const std::string text : {"plain", "", "two words", "it's", "''", "$HOME", "`id`", "a\\b",
                                 "*", "~", "=lo", "a\nb", "\"", "größe", "#", "!x", "{a,b}"})
    EXPECT_EQ(read_by_a_shell(shell_word(text)), text + ".") << text;
}

}  // namespace
}  // namespace shoal
