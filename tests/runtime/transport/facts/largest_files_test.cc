#include "runtime/transport/facts/largest_files.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/transport/facts/fact_files.h"

namespace shoal {
namespace {

class LargestFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "largest_files_test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void make(const std::string& name, size_t bytes) const {
    std::ofstream(directory_ + "/" + name) << std::string(bytes, 'x');
  }
  std::string directory_;
};

TEST_F(LargestFiles, AreNamedWithOwnerAndAge) {
  std::filesystem::create_directories(directory_ + "/a/b");
  make("small", 5000);
  make("a/b/deep", 400'000);
  make("middle", 100'000);
  make("tiny", 10);
  std::filesystem::create_symlink(directory_ + "/a/b/deep", directory_ + "/link");
  std::filesystem::last_write_time(
      directory_ + "/middle",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  const std::vector<ShmFile> files = largest_files(directory_, 3);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].path, directory_ + "/a/b/deep");
  EXPECT_GE(files[0].bytes, 400'000);
  EXPECT_EQ(files[0].uid, ::geteuid());
  EXPECT_EQ(files[0].user, user_name(text_of("/etc/passwd"), ::geteuid()));
  EXPECT_LT(files[0].age_s, 60);
  EXPECT_EQ(files[1].path, directory_ + "/middle");
  EXPECT_NEAR(static_cast<double>(files[1].age_s), 7200, 60);
  EXPECT_EQ(files[2].path, directory_ + "/small");
}

TEST(UserName, IsThatOfThePasswordFile) {
  const std::string passwd =
      "+:::::\n\nshort:x\nroot:x:0:0:root:/root:/bin/sh\nme::1000:0::/:\ntwin:x:1000:1::/:";
  EXPECT_EQ(user_name(passwd, 0), "root");
  EXPECT_EQ(user_name(passwd, 1000), "me");
  EXPECT_EQ(user_name(passwd, 100), "");
  EXPECT_EQ(user_name("", 0), "");
}

TEST_F(LargestFiles, AreNoneWithoutADirectory) {
  EXPECT_TRUE(largest_files(directory_, 3).empty());
  EXPECT_TRUE(largest_files(directory_ + "/none", 3).empty());
}

}  // namespace
}  // namespace shoal
