// The hash of the weights of a model that nobody waits for.
#include "server/host/model_fingerprint.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
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

}  // namespace
}  // namespace shoal
