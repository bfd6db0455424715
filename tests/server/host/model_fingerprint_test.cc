// The hash of the weights of a model, also if nobody waits for it, and of what else decides the
// bits of answers.
#include "server/host/model_fingerprint.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

#include "tests/guard.h"
#include "tests/held_reads.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

TEST(ModelFingerprint, AStartThatFailsDoesNotWaitForTheRestOfTheFiles) {
  const std::string path = testing::TempDir() + cat("/shoal-sparse-", ::getpid());
  const Fd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(file.valid());
  // Holes of a tebibyte, which take minutes to read.
  const int made = ::ftruncate(file.get(), off_t{1} << 40);
  const int error = errno;
  Result<ModelFiles> files = open_model(SHOAL_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  if (made == 0)
    files->watched = {{std::make_shared<HeldFile>(HeldFile::open(path).value()), true}};
  std::filesystem::remove(path);
  if (made != 0) GTEST_SKIP() << "no file of a tebibyte here, errno " << error;
  { const ModelFingerprint unread(*files); }
  // That this line is reached is the test: CTest ends one that takes minutes.
  EXPECT_EQ(files->watched.size(), 1u);
}

TEST(ModelFingerprint, AFileThatDoesNotAnswerIsNamedAndItsReaderLeftBehind) {
  const Result<ModelFiles> files = open_model(SHOAL_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  HeldReads* reads = nullptr;
  std::optional<ModelFingerprint> weights;
  std::thread([&] {
    reads = HeldReads::make();
    weights.emplace(*files);
  }).join();
  if (!reads->can_be_held()) GTEST_SKIP() << "the kernel holds no calls here";
  ASSERT_TRUE(reads->hold(kGuardMs));
  std::atomic<bool> over = false;
  const MovedClock clock;
  std::thread time([&over] {
    EXPECT_TRUE(eventually([&over] {
      MovedClock::advance(0.1);
      return over.load();
    }));
  });
  const Status status = weights->finish("auto", "cuda-sm90-8", 10).status();
  EXPECT_EQ(status.code(), Code::kAborted) << status.to_string();
  EXPECT_EQ(status.fault(), Fault::kModelChanged);
  EXPECT_NE(status.message().find("model.safetensors does not answer"), std::string_view::npos)
      << status.to_string();
  EXPECT_NE(status.message().find("after 10 s"), std::string_view::npos) << status.to_string();
  const Status at_once = weights->finish("auto", "cuda-sm90-8", 1e-3).status();
  EXPECT_NE(at_once.message().find("after 2 s"), std::string_view::npos) << at_once.to_string();
  weights.reset();
  over = true;
  time.join();
}

TEST(ModelFingerprint, ChangesWithEachPartOfTheArithmetic) {
  const Result<ModelFiles> files = open_model(SHOAL_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ModelFingerprint weights(*files);
  const auto fingerprint = [&](const char* dtype, const char* arithmetic) {
    return weights.finish(dtype, arithmetic, kGuardSeconds).value();
  };
  const std::string first = fingerprint("auto", "cuda-sm90-8");
  EXPECT_EQ(fingerprint("auto", "cuda-sm90-8"), first);
  std::set<std::string> all = {first, fingerprint("float32", "cuda-sm90-8")};
  // The class, the number of leaves, the order of sums, the library, its version and its table.
  const char* const kOthers[] = {"cuda-sm80-8",
                                 "cuda-sm90-6",
                                 "cuda-sm90-8-off",
                                 "cuda-sm90-8-off-cublas-13.1.0-from-33",
                                 "cuda-sm90-8-off-cublas-13.1.1-from-33",
                                 "cuda-sm90-8-off-cublas-13.1.0-from-128"};
  for (const char* const other : kOthers) all.insert(fingerprint("auto", other));
  EXPECT_EQ(all.size(), 2 + std::size(kOthers));
}

}  // namespace
}  // namespace shoal
