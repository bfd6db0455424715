// The hash of the weights of a model, also if nobody waits for it, and of what else decides the
// bits of answers.
#include "server/host/model_fingerprint.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <iterator>
#include <set>
#include <string>
#include <unistd.h>

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

TEST(ModelFingerprint, ChangesWithEachPartOfTheArithmetic) {
  const Result<ModelFiles> files = open_model(SHOAL_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  ModelFingerprint weights(*files);
  const auto fingerprint = [&](const char* dtype, const char* arithmetic) {
    return weights.finish(dtype, arithmetic).value();
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
