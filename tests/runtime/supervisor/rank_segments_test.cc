#include "runtime/supervisor/rank_segments.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"

namespace shoal {
namespace {

/// A file in /dev/shm with that many bytes, which this process holds open.
Fd held(const std::string& path, int64_t bytes) {
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  EXPECT_TRUE(file.valid()) << path;
  EXPECT_EQ(::fallocate(file.get(), 0, 0, bytes), 0);
  return file;
}

TEST(RankSegments, FilesOfNcclCountOnceWithAndWithoutAName) {
  const int64_t before = nccl_bytes_held_by({::getpid()});
  const size_t named = segments_held_by(::getpid()).size();
  const std::string path = cat("/dev/shm/nccl-test-", ::getpid());
  const std::string other = cat("/dev/shm/other-test-", ::getpid());
  const Fd first = held(path, 9637892), stranger = held(other, 100'000);
  const Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // as a peer attaches
  EXPECT_EQ(nccl_bytes_held_by({::getpid(), ::getpid()}), before + 9641984);
  EXPECT_EQ(segments_held_by(::getpid()).size(), named + 3);
  ::unlink(path.c_str());
  ::unlink(other.c_str());
  EXPECT_EQ(nccl_bytes_held_by({::getpid()}), before + 9641984);
  EXPECT_EQ(segments_held_by(::getpid()).size(), named);
}

TEST(RankSegments, AProcessThatIsGoneHoldsNothing) {
  EXPECT_EQ(nccl_bytes_held_by({0x7fffffff}), 0);
}

}  // namespace
}  // namespace shoal
