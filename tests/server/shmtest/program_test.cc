#include "server/shmtest/program.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace shoal::shmtest {
namespace {

/// A folder of its own with a file that nobody may execute, and one that anybody may.
class ShmtestProgramTest : public testing::Test {
 protected:
  ShmtestProgramTest() {
    std::filesystem::create_directory(folder_);
    for (const std::string& path : {plain_, script_})
      std::ofstream(path) << "#!/no/such/interpreter\n";
    std::filesystem::permissions(script_, std::filesystem::perms::owner_all);
  }
  ~ShmtestProgramTest() override { std::filesystem::remove_all(folder_); }

  static std::string refusal(const std::string& name) { return find_program(name).plain_text(); }

  const std::string folder_ = testing::TempDir() + cat("/shoal-program-", ::getpid());
  const std::string plain_ = folder_ + "/plain", script_ = folder_ + "/shoal-engine";
};

TEST_F(ShmtestProgramTest, SaysWhatWasProbablyMeant) {
  EXPECT_TRUE(find_program("sh").ok());
  EXPECT_TRUE(find_program(script_).ok());
  EXPECT_EQ(refusal("no-such-program"), "command not found: no-such-program (looked along PATH)");
  EXPECT_EQ(refusal("./no/such"), "command not found: ./no/such: No such file or directory");
  const std::string quoted =
      "; it is one word: leave out the quotes around it, or put sh -c before it";
  EXPECT_EQ(refusal("sh engine.sh"),
            cat("command not found: sh engine.sh (looked along PATH)", quoted));
  EXPECT_EQ(refusal(script_ + " --test"), cat("command not found: ", script_, " --test", quoted));
  EXPECT_EQ(refusal(folder_),
            cat("not a program that can be executed: ", folder_, " is a directory"));
  EXPECT_EQ(refusal(plain_),
            cat("not a program that can be executed: ", plain_,
                "; it needs the permission (chmod +x), or its interpreter before it"));
}

TEST_F(ShmtestProgramTest, AProgramOfThisFolderIsNotAlongPath) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  const std::string text = refusal("shoal-engine");
  std::filesystem::current_path(before);
  EXPECT_EQ(text,
            "command not found: shoal-engine (looked along PATH); did you mean ./shoal-engine?");
}

TEST_F(ShmtestProgramTest, AnInterpreterMayBeMissing) {
  const std::string absent = folder_ + "/absent";
  EXPECT_EQ(start_failure(script_, ENOENT),
            cat(script_,
                ": No such file or directory; the program is there, but not its interpreter "
                "(#!) or loader"));
  EXPECT_EQ(start_failure(absent, ENOENT), cat(absent, ": No such file or directory"));
  EXPECT_EQ(start_failure(script_, EACCES), cat(script_, ": Permission denied"));
}

}  // namespace
}  // namespace shoal::shmtest
