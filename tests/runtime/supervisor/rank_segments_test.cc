#include "runtime/supervisor/rank_segments.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/page_size.h"

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
  const size_t named = segments_held_by({::getpid()}).size();
  const std::string path = cat("/dev/shm/nccl-test-", ::getpid());
  const std::string other = cat("/dev/shm/other-test-", ::getpid());
  const int64_t bytes = 9637892, charged = static_cast<int64_t>(whole_pages(9637892));
  const Fd first = held(path, bytes), stranger = held(other, 100'000);
  const Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // as a peer attaches
  EXPECT_EQ(nccl_bytes_held_by({::getpid(), ::getpid()}), before + charged);
  EXPECT_EQ(segments_held_by({::getpid()}).size(), named + 3);
  ::unlink(path.c_str());
  ::unlink(other.c_str());
  EXPECT_EQ(nccl_bytes_held_by({::getpid()}), before + charged);
  EXPECT_EQ(segments_held_by({::getpid()}).size(), named);
}

/// A child that makes files in /dev/shm without end, and holds the last 20 with their names.
pid_t maker_of_files() {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::array<std::string, 20> paths;
  std::array<int, 20> files{};
  for (size_t i = 0;; i = (i + 1) % paths.size()) {
    if (!paths[i].empty()) {
      ::unlink(paths[i].c_str());
      ::close(files[i]);
    }
    paths[i] = "/dev/shm/nccl-XXXXXX";
    files[i] = ::mkstemp(paths[i].data());
  }
}

TEST(RankSegments, WhatAProcessMakesUntilItStopsIsListed) {
  const pid_t child = maker_of_files();
  while (segments_held_by({child}).size() < 10) std::this_thread::yield();
  const std::vector<SegmentId> listed = segments_held_by({child}, Look::kStopped);
  EXPECT_EQ(segments_held_by({child}), listed) << "it still made files";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto swept = remove_recorded("/dev/shm", listed);
  ASSERT_TRUE(swept.ok());
  EXPECT_GE(swept->removed.size(), 19u);
  EXPECT_EQ(swept->removed.size(), listed.size());
}

TEST(RankSegments, AProcessThatIsGoneHoldsNothing) {
  EXPECT_TRUE(segments_held_by({0x7fffffff}, Look::kStopped).empty());
  EXPECT_EQ(nccl_bytes_held_by({0x7fffffff}), 0);
}

}  // namespace
}  // namespace shoal
