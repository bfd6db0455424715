// What is said about the files of a model that change while it is in use.
#include "server/host/model_watch.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "tests/guard.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

class ModelWatchTest : public testing::Test {
 protected:
  ModelWatchTest() : dir_(testing::TempDir() + cat("/shoal-watch-", ::getpid())) {
    fs::create_directories(dir_);
    set_log_options({LogLevel::kInfo, LogFormat::kText});
    for (const char* name : {"config.json", "a.safetensors", "b.safetensors"}) {
      write(name, std::string(1000, 'a'));
      // Then a change that follows at once has other times, whatever the file system's clock can
      // tell apart.
      const timespec past[2] = {{1'000'000, 0}, {1'000'000, 0}};
      EXPECT_EQ(::utimensat(AT_FDCWD, path(name).c_str(), past, 0), 0);
      files_.push_back({std::make_shared<HeldFile>(HeldFile::open(path(name)).value()),
                        std::string_view(name) != "config.json"});
    }
    testing::internal::CaptureStderr();
    watch_ = ModelWatch::start(files_).value();
  }
  ~ModelWatchTest() override {
    (void)testing::internal::GetCapturedStderr();
    set_log_options(before_);
    fs::remove_all(dir_);
  }

  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }
  void rename_over(const std::string& name) const {
    write("new", "other");
    fs::rename(path("new"), path(name));
  }
  /// What has been said on stderr since the last call, when it has looked once more. It also looks
  /// by itself, whenever it likes.
  std::string said_by_look(Code wanted) const {
    const Status status = watch_->look();
    EXPECT_EQ(status.code(), wanted) << status.to_string();
    const std::string said = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    return said;
  }

  const LogOptions before_ = log_options();
  const std::string dir_;
  std::vector<WatchedFile> files_;
  std::unique_ptr<ModelWatch> watch_;
};

TEST_F(ModelWatchTest, ReplacedFilesAreNamedOnceAndChangeNothing) {
  EXPECT_EQ(said_by_look(Code::kOk), "");
  rename_over("a.safetensors");
  rename_over("config.json");
  const std::string said = said_by_look(Code::kOk);
  EXPECT_NE(said.find("were replaced"), std::string::npos) << said;
  EXPECT_NE(said.find("a.safetensors"), std::string::npos) << said;
  EXPECT_NE(said.find("config.json"), std::string::npos) << said;
  EXPECT_EQ(said.find("b.safetensors"), std::string::npos) << said;
  rename_over("a.safetensors");
  EXPECT_EQ(said_by_look(Code::kOk), "") << "once";
  fs::remove(path("b.safetensors"));
  EXPECT_NE(said_by_look(Code::kOk).find("b.safetensors"), std::string::npos);
}

TEST_F(ModelWatchTest, AChangeInPlaceOfWhatIsMappedIsTheEnd) {
  EXPECT_TRUE(watch_->changed().ok());
  write("b.safetensors", std::string(1000, 'b'));
  EXPECT_EQ(said_by_look(Code::kDataLoss), "") << "the caller says it";
  EXPECT_NE(watch_->changed().message().find("b.safetensors was changed in place"),
            std::string_view::npos)
      << watch_->changed().to_string();
  write("b.safetensors", std::string(1000, 'a'));
  EXPECT_EQ(said_by_look(Code::kDataLoss), "") << "what was computed meanwhile is wrong";
}

TEST_F(ModelWatchTest, AChangeInPlaceOfWhatWasReadWholeIsAWarning) {
  write("config.json", "{}");
  EXPECT_NE(said_by_look(Code::kOk).find("config.json"), std::string::npos);
  EXPECT_EQ(said_by_look(Code::kOk), "");
}

TEST_F(ModelWatchTest, RanksThatLoadOtherWeightsAreTheEnd) {
  EXPECT_TRUE(watch_->loaded({1, 2}).ok()) << "the first are kept";
  EXPECT_TRUE(watch_->loaded({1, 2}).ok());
  const Status changed = watch_->loaded({1, 3});
  EXPECT_EQ(changed.code(), Code::kDataLoss);
  EXPECT_EQ(changed.fault(), Fault::kModelChanged);
  EXPECT_NE(changed.message().find("the weights of rank 1 were changed in place"),
            std::string_view::npos)
      << changed.to_string();
  EXPECT_FALSE(watch_->loaded({1, 2}).ok()) << "what was computed meanwhile is wrong";
  EXPECT_FALSE(watch_->changed().ok());
}

// Nobody can say which of the ranks have loaded what was there before, and no sums of an earlier
// start say what it should be.
TEST_F(ModelWatchTest, AWriteBeforeTheFirstRanksHaveLoadedIsTheEnd) {
  write("a.safetensors", std::string(1000, 'a'));
  EXPECT_EQ(said_by_look(Code::kDataLoss), "") << "the caller says it";
  EXPECT_EQ(watch_->changed().fault(), Fault::kModelChanged);
  EXPECT_FALSE(watch_->loaded({1, 2}).ok());
}

TEST_F(ModelWatchTest, TheLastLookBeforeTheFirstSumsSeesAWrite) {
  write("b.safetensors", std::string(1000, 'a'));
  const Status changed = watch_->loaded({1, 2});
  EXPECT_NE(changed.message().find("b.safetensors was changed in place"), std::string_view::npos)
      << changed.to_string();
}

TEST_F(ModelWatchTest, NothingButAWriteEndsAStart) {
  write("config.json", std::string(1000, 'a'));  // the front has read all of it
  fs::create_hard_link(path("a.safetensors"), path("link"));
  fs::permissions(path("b.safetensors"), fs::perms::owner_read);
  rename_over("a.safetensors");
  EXPECT_TRUE(watch_->loaded({1, 2}).ok()) << watch_->changed().to_string();
}

TEST_F(ModelWatchTest, ATouchIsALogLineOnceRanksHaveLoaded) {
  ASSERT_TRUE(watch_->loaded({1, 2}).ok());
  write("a.safetensors", std::string(1000, 'a'));
  const std::string said = said_by_look(Code::kOk);
  EXPECT_NE(said.find("a.safetensors was touched"), std::string::npos) << said;
  EXPECT_EQ(said.find("replaced"), std::string::npos) << said;
}

TEST_F(ModelWatchTest, ItLooksByItself) {
  fs::resize_file(path("a.safetensors"), 10);
  EXPECT_TRUE(eventually([&] { return !watch_->changed().ok(); }));
  EXPECT_EQ(watch_->changed().code(), Code::kDataLoss);
  EXPECT_EQ(watch_->changed().fault(), Fault::kModelChanged);
}

}  // namespace
}  // namespace shoal
