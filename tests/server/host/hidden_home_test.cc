#include "server/host/hidden_home.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

namespace shoal {
namespace {

class HiddenHome : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(home_); }
  void TearDown() override { std::filesystem::remove_all(home_); }
  std::string said(const std::string& model) const {
    const std::string_view homes[] = {"/no/such/folder", home_};
    return hidden_home(model, homes);
  }

  const std::string home_ = testing::TempDir() + "shoal-home-" + std::to_string(::getpid());
};

TEST_F(HiddenHome, AnEmptyFolderAboveTheModelIsTakenForHidden) {
  EXPECT_NE(said(home_ + "/me/model").find("nothing in " + home_ + " can be seen from here"),
            std::string::npos);
  EXPECT_NE(said(home_ + "/me/../you/model/").find("ProtectHome="), std::string::npos);
  EXPECT_NE(said("/no/such/folder/model").find("nothing in /no/such/folder can"),
            std::string::npos);
}

TEST_F(HiddenHome, OneInWhichSomethingIsSeenIsNot) {
  std::ofstream(home_ + "/other") << "x";
  EXPECT_EQ(said(home_ + "/me/model"), "");
}

TEST_F(HiddenHome, AModelElsewhereIsNoConcern) {
  EXPECT_EQ(said("/models/qwen3"), "");
  EXPECT_EQ(said(home_ + "-of-others/model"), "");
  EXPECT_EQ(said(home_), "");
  EXPECT_EQ(said(""), "");
}

}  // namespace
}  // namespace shoal
