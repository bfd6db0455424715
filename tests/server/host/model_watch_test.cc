// What is said about the files of a model that change while it is in use.
#include "server/host/model_watch.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <gtest/gtest.h>
#include <list>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "tests/guard.h"
#include "tests/held_reads.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

/// By when the files answer, which are there.
Deadline in_time() {
  return Deadline::after_ms(kGuardMs);
}

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
    watch_ = ModelWatch::start(files_, in_time()).value();
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
  /// The file, opened once more.
  WatchedFile held(const std::string& name) const {
    return {std::make_shared<HeldFile>(HeldFile::open(path(name)).value()), true};
  }
  /// What has been said on stderr since the last call, when it has looked once more. It also looks
  /// by itself, whenever it likes.
  std::string said_by_look(Code wanted) const {
    const Status status = watch_->look(in_time());
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
  EXPECT_TRUE(watch_->loaded({1, 2}, in_time()).ok()) << "the first are kept";
  EXPECT_TRUE(watch_->loaded({1, 2}, in_time()).ok());
  const Status changed = watch_->loaded({1, 3}, in_time());
  EXPECT_EQ(changed.code(), Code::kDataLoss);
  EXPECT_EQ(changed.fault(), Fault::kModelChanged);
  EXPECT_NE(changed.message().find("the weights of rank 1 were changed in place"),
            std::string_view::npos)
      << changed.to_string();
  EXPECT_FALSE(watch_->loaded({1, 2}, in_time()).ok()) << "what was computed meanwhile is wrong";
  EXPECT_FALSE(watch_->changed().ok());
}

// Nobody can say which of the ranks have loaded what was there before, and no sums of an earlier
// start say what it should be.
TEST_F(ModelWatchTest, AWriteBeforeTheFirstRanksHaveLoadedIsTheEnd) {
  write("a.safetensors", std::string(1000, 'a'));
  EXPECT_EQ(said_by_look(Code::kDataLoss), "") << "the caller says it";
  EXPECT_EQ(watch_->changed().fault(), Fault::kModelChanged);
  EXPECT_FALSE(watch_->loaded({1, 2}, in_time()).ok());
}

TEST_F(ModelWatchTest, TheLastLookBeforeTheFirstSumsSeesAWrite) {
  write("b.safetensors", std::string(1000, 'a'));
  const Status changed = watch_->loaded({1, 2}, in_time());
  EXPECT_NE(changed.message().find("b.safetensors was changed in place"), std::string_view::npos)
      << changed.to_string();
}

TEST_F(ModelWatchTest, NothingButAWriteEndsAStart) {
  write("config.json", std::string(1000, 'a'));  // the front has read all of it
  fs::create_hard_link(path("a.safetensors"), path("link"));
  fs::permissions(path("b.safetensors"), fs::perms::owner_read);
  rename_over("a.safetensors");
  EXPECT_TRUE(watch_->loaded({1, 2}, in_time()).ok()) << watch_->changed().to_string();
}

TEST_F(ModelWatchTest, ATouchIsALogLineOnceRanksHaveLoaded) {
  ASSERT_TRUE(watch_->loaded({1, 2}, in_time()).ok());
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

TEST_F(ModelWatchTest, ALookThatIsGivenUpIsNoAnswer) {
  const Status status = watch_->look(in_time(), [] { return true; });
  EXPECT_EQ(status.code(), Code::kCancelled) << status.to_string();
  EXPECT_EQ(status.fault(), Fault::kGivenUp);
  EXPECT_TRUE(eventually([&] { return watch_->look(in_time()).ok(); })) << "a later one is";
}

TEST_F(ModelWatchTest, AFileThatDoesNotAnswerIsNamedAndLeftBehind) {
  const WatchedFile file = held("a.safetensors");
  HeldReads* reads = nullptr;
  std::promise<void> prepared;
  std::unique_ptr<ModelWatch> watch;
  std::atomic<bool> over = false;
  std::thread starter([&] {
    reads = HeldReads::make();
    prepared.set_value();
    if (reads->can_be_held()) watch = ModelWatch::start({file}, in_time()).value();
    over = true;
  });
  prepared.get_future().wait();
  while (reads->can_be_held() && !over)
    if (reads->hold(1)) reads->let_go();
  starter.join();
  if (!reads->can_be_held()) GTEST_SKIP() << "the kernel holds no calls here";
  over = false;
  const MovedClock clock;
  std::thread time([&] {
    EXPECT_TRUE(reads->hold(kGuardMs));
    EXPECT_TRUE(eventually([&] {
      MovedClock::advance(0.1);
      return over.load();
    }));
  });
  const Status status = watch->look(Deadline::after_ms(0));
  EXPECT_EQ(status.code(), Code::kAborted) << status.to_string();
  EXPECT_EQ(status.fault(), Fault::kModelChanged);
  EXPECT_NE(status.message().find("a.safetensors does not answer"), std::string_view::npos)
      << status.to_string();
  EXPECT_EQ(watch->look(Deadline::infinite()).code(), Code::kAborted) << "it is the same look";
  EXPECT_TRUE(watch->changed().ok()) << "nobody has seen a change";
  watch.reset();
  over = true;
  time.join();
}

/// A first look at a file that does not answer. gives_up: it is given up once the file is being
/// read.
Status first_look_at_silence(const WatchedFile& file, Deadline (*deadline)(), bool gives_up) {
  HeldReads* reads = nullptr;
  std::promise<void> prepared;
  std::promise<Status> looked;
  std::atomic<bool> held = false, asked = false, over = false;
  const MovedClock clock;
  std::thread starter([&] {
    reads = HeldReads::make();
    prepared.set_value();
    const auto given_up = [&] {
      asked = true;
      return gives_up && held;
    };
    looked.set_value(reads->can_be_held() ? ModelWatch::start({file}, deadline(), given_up).status()
                                          : Status());
    over = true;
  });
  prepared.get_future().wait();
  if (reads->can_be_held()) {
    EXPECT_TRUE(reads->hold(kGuardMs));
    held = true;
    EXPECT_TRUE(eventually([&] {
      MovedClock::advance(0.1);
      return over.load();
    }));
    EXPECT_TRUE(asked) << "so that the caller can say what it waits for";
  }
  starter.join();
  return looked.get_future().get();
}

TEST_F(ModelWatchTest, AStartOnAFileThatDoesNotAnswerEndsByItsDeadline) {
  const Status late = first_look_at_silence(
      held("a.safetensors"), [] { return Deadline::after_ms(0); }, false);
  if (late.ok()) GTEST_SKIP() << "the kernel holds no calls here";
  EXPECT_EQ(late.code(), Code::kAborted) << late.to_string();
  EXPECT_EQ(late.fault(), Fault::kModelChanged);
  EXPECT_NE(late.message().find("a.safetensors does not answer"), std::string_view::npos)
      << late.to_string();
}

TEST_F(ModelWatchTest, AStartThatIsGivenUpEnds) {
  const Status given_up = first_look_at_silence(
      held("a.safetensors"), [] { return Deadline::infinite(); }, true);
  if (given_up.ok()) GTEST_SKIP() << "the kernel holds no calls here";
  EXPECT_EQ(given_up.fault(), Fault::kGivenUp) << given_up.to_string();
}

TEST_F(ModelWatchTest, AFileThatWasWrittenToSinceItWasOpenedEndsAStart) {
  const WatchedFile file = held("b.safetensors");
  write("b.safetensors", "b");
  const Status changed = ModelWatch::start({file}, in_time()).status();
  EXPECT_EQ(changed.fault(), Fault::kModelChanged) << changed.to_string();
}

constexpr size_t kPieceBytes = size_t{64} << 10;

/// A file of a tmpfs. What is written through its mapping is a change that its times do not show,
/// because all of its pages have been written to before: newer kernels note a first write only.
class FileInMemory {
 public:
  explicit FileInMemory(size_t bytes) : fd_(::memfd_create("model", MFD_CLOEXEC)), bytes_(bytes) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    data_ = static_cast<char*>(mapped);
    std::memset(data_, 'a', bytes);
  }
  ~FileInMemory() { ::munmap(data_, bytes_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;

  void change(size_t byte) { data_[byte] = static_cast<char>(data_[byte] ^ 1); }
  void set_mtime(time_t seconds) const {
    const timespec times[2] = {{0, UTIME_OMIT}, {seconds, 0}};
    EXPECT_EQ(::futimens(fd_.get(), times), 0);
  }
  std::shared_ptr<HeldFile> held() const {
    return std::make_shared<HeldFile>(HeldFile::open(cat("/proc/self/fd/", fd_.get())).value());
  }

 private:
  const Fd fd_;
  const size_t bytes_;
  char* data_ = nullptr;
};

/// Weights that ranks have loaded, and beside them small files that the front has read whole. There
/// are `shards` files of weights, each of `pieces` pieces of 64 KiB.
class ServedWeights {
 public:
  ServedWeights(size_t shards, size_t pieces) {
    for (size_t shard = 0; shard < shards; ++shard) {
      files_.emplace_back(pieces * kPieceBytes).set_mtime(kThen);
      weights_.push_back(&files_.back());
    }
    for (int small = 0; small < 3; ++small) files_.emplace_back(1000);
  }

  static constexpr time_t kThen = 1'000'000;
  static std::vector<uint64_t> sums() { return {1, 2}; }  // of what the ranks have loaded

  FileInMemory& shard(size_t number) { return *weights_[number]; }
  std::unique_ptr<ModelWatch> watch() const {
    std::vector<WatchedFile> watched;
    for (const FileInMemory& file : files_)
      watched.push_back({file.held(), watched.size() < weights_.size()});
    std::unique_ptr<ModelWatch> started = ModelWatch::start(std::move(watched), in_time()).value();
    EXPECT_TRUE(started->loaded(sums(), in_time()).ok()) << started->changed().to_string();
    return started;
  }

 private:
  std::list<FileInMemory> files_;  // those of the weights first
  std::vector<FileInMemory*> weights_;
};

// The small files have no share of the 64, which are all of the weights' second pieces here.
TEST(ServedWeightsTest, SixtyFourPiecesOfThemAreCompared) {
  for (const size_t shards : {size_t{1}, size_t{2}}) {
    const size_t pieces = 128 / shards - 1;
    ServedWeights weights(shards, pieces);
    for (size_t piece = 0; piece < pieces * shards; ++piece) {
      const size_t in_shard = piece % pieces;
      if (in_shard % 2 == 1) continue;
      const auto watch = weights.watch();
      const size_t byte = in_shard * kPieceBytes + 997 * piece % kPieceBytes;
      weights.shard(piece / pieces).change(byte);
      EXPECT_EQ(watch->look(in_time()).fault(), Fault::kModelChanged)
          << "byte " << byte << " of shard " << piece / pieces << " of " << shards;
      weights.shard(piece / pieces).change(byte);
    }
  }
}

TEST(ServedWeightsTest, TheyAreComparedAtEveryRestart) {
  for (int restart = 1; restart <= 3; ++restart) {
    ServedWeights weights(1, 2);
    const auto watch = weights.watch();
    for (int before = 1; before < restart; ++before) {
      EXPECT_TRUE(watch->look(in_time()).ok());
      EXPECT_TRUE(watch->loaded(ServedWeights::sums(), in_time()).ok());
    }
    weights.shard(0).change(kPieceBytes);
    EXPECT_EQ(watch->look(in_time()).fault(), Fault::kModelChanged) << "before restart " << restart;
    EXPECT_EQ(watch->loaded(ServedWeights::sums(), in_time()).fault(), Fault::kModelChanged);
  }
}

// The ranks' sums are of what they read, and what stays mapped is read again in every step.
TEST(ServedWeightsTest, TheyAreComparedOnceMoreWhenNewRanksHaveLoaded) {
  ServedWeights weights(1, 2);
  const auto watch = weights.watch();
  EXPECT_TRUE(watch->look(in_time()).ok());
  weights.shard(0).change(kPieceBytes);
  EXPECT_EQ(watch->loaded(ServedWeights::sums(), in_time()).fault(), Fault::kModelChanged);
}

TEST(ServedWeightsTest, WhatTheirMtimeSaysDoesNotMatter) {
  for (const time_t mtime : {ServedWeights::kThen, ServedWeights::kThen - 1, time_t{2'000'000}}) {
    ServedWeights weights(1, 2);
    const auto watch = weights.watch();
    weights.shard(0).set_mtime(mtime);
    EXPECT_TRUE(watch->look(in_time()).ok()) << "the contents are the same, with mtime " << mtime;
    weights.shard(0).change(5);
    weights.shard(0).set_mtime(mtime);
    EXPECT_EQ(watch->look(in_time()).fault(), Fault::kModelChanged) << "with mtime " << mtime;
  }
}

}  // namespace
}  // namespace shoal
