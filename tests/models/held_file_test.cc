// Real files: what can happen to one that is held open, and what shows it.
#include "models/held_file.h"

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/fd.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using Change = HeldFile::Change;

class HeldFileTest : public testing::Test {
 protected:
  HeldFileTest() : dir_(testing::TempDir() + cat("/shoal-held-", ::getpid())) {
    fs::create_directories(dir_);
    write(path_, std::string(200'000, 'a'));
  }
  ~HeldFileTest() override { fs::remove_all(dir_); }

  static void write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }
  /// The file at path_, with a fingerprint. Its times are long past, so that a change that follows
  /// at once has other times, whatever the clock of the file system can tell apart.
  HeldFile held(int chunks = 64) const {
    const timespec past[2] = {{1'000'000, 0}, {1'000'000, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path_.c_str(), past, 0), 0);
    HeldFile file = HeldFile::open(path_).value();
    EXPECT_TRUE(file.take_fingerprint(chunks).ok());
    return file;
  }
  void overwrite(uint64_t offset, const std::string& bytes) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }

  /// Waits until a change has another ctime than one before. The file system's clock advances in
  /// ticks.
  void wait_for_a_tick() const {
    const auto now = [this] {
      write(dir_ + "/clock", "tick");
      struct stat found {};
      EXPECT_EQ(::stat((dir_ + "/clock").c_str(), &found), 0);
      return std::pair(found.st_ctim.tv_sec, found.st_ctim.tv_nsec);
    };
    for (const auto before = now(); now() == before;) ::sched_yield();
  }

  const std::string dir_;
  const std::string path_ = dir_ + "/weights";
};

TEST_F(HeldFileTest, NothingHasHappened) {
  HeldFile file = held();
  EXPECT_EQ(file.bytes(), 200'000u);
  EXPECT_EQ(file.look(), Change::kNone);
  EXPECT_FALSE(file.replaced());
}

TEST_F(HeldFileTest, ATouchPassesForAWriteAndIsReportedOnce) {
  HeldFile file = held();
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0), 0);
  EXPECT_EQ(file.look(), Change::kWritten);
  EXPECT_EQ(file.look(), Change::kNone);
  EXPECT_FALSE(file.replaced());
}

TEST_F(HeldFileTest, AnotherModeIsNoWrite) {
  HeldFile file = held();
  wait_for_a_tick();
  fs::permissions(path_, fs::perms::owner_read);
  EXPECT_EQ(file.look(), Change::kTouched);
  EXPECT_EQ(file.look(), Change::kNone);
}

TEST_F(HeldFileTest, WritingTheSameBytesIsAWrite) {
  HeldFile file = held();
  overwrite(100, "aaa");
  EXPECT_EQ(file.look(), Change::kWritten);
}

TEST_F(HeldFileTest, OtherBytesAreOtherContents) {
  for (const uint64_t offset : {0, 65'535, 65'536, 131'072, 199'999}) {
    write(path_, std::string(200'000, 'a'));
    HeldFile file = held();
    overwrite(offset, "b");
    EXPECT_EQ(file.look(), Change::kContents) << offset;
    EXPECT_EQ(file.look(), Change::kContents) << "it stays what it is";
    EXPECT_FALSE(file.replaced());
  }
}

TEST_F(HeldFileTest, OtherBytesWithTheOldTimesShowInCtime) {
  HeldFile file = held();
  wait_for_a_tick();
  overwrite(0, "b");
  const timespec past[2] = {{1'000'000, 0}, {1'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), past, 0), 0);
  EXPECT_EQ(file.look(), Change::kContents);
}

TEST_F(HeldFileTest, AWriteBeforeTheFingerprintIsAChange) {
  HeldFile file = HeldFile::open(path_).value();
  fs::resize_file(path_, 10);
  const Status taken = file.take_fingerprint(4);
  EXPECT_EQ(taken.fault(), Fault::kModelChanged) << taken.to_string();
  EXPECT_NE(taken.to_string().find("changed in place"), std::string::npos);
}

TEST_F(HeldFileTest, ItsBeginningIsACopy) {
  const HeldFile file = held();
  overwrite(0, "begin");
  EXPECT_EQ(file.head(8).value(), "beginaaa");
  EXPECT_EQ(file.head(300'000).value().size(), 200'000u);
  fs::resize_file(path_, 3);
  EXPECT_EQ(file.head(8).value(), "beg");
  fs::resize_file(path_, 0);
  EXPECT_EQ(file.head(8).value(), "");
}

TEST_F(HeldFileTest, AnyWriteSinceItWasOpenedShows) {
  {
    const HeldFile file = held();
    EXPECT_FALSE(file.written());
    overwrite(100, "aaa");
    EXPECT_TRUE(file.written()) << "its time is another";
  }
  {
    const HeldFile file = held();
    wait_for_a_tick();
    fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_write);
    const fs::path name = fs::path(path_).string() + ".name";
    fs::create_hard_link(path_, name);
    fs::remove(name);
    EXPECT_FALSE(file.written()) << "no byte of it is another";
  }
  const HeldFile file = HeldFile::open(path_).value();
  fs::resize_file(path_, 200'001);
  EXPECT_TRUE(file.written()) << "its size is another";
}

// On older kernels nobody but a comparison sees a write through a mapping of a tmpfs.
TEST_F(HeldFileTest, AWriteThroughAMappingOfATmpfsIsSeenByAComparison) {
  const std::string path = cat("/dev/shm/held-", ::getpid());
  write(path, std::string(200'000, 'a'));
  HeldFile file = HeldFile::open(path).value();
  EXPECT_TRUE(file.take_fingerprint(4).ok());
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ::unlink(path.c_str());
  struct statfs kind {};
  if (::fstatfs(fd.get(), &kind) != 0 || kind.f_type != TMPFS_MAGIC)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  void* const bytes = ::mmap(nullptr, 200'000, PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(bytes, MAP_FAILED);
  *static_cast<char*>(bytes) = 'b';
  EXPECT_EQ(file.look(true), Change::kContents) << "whatever this kernel makes of the times";
  ::munmap(bytes, 200'000);
}

TEST_F(HeldFileTest, ALargeFileIsSampledFromItsFirstToItsLastByte) {
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  fs::resize_file(path_, kBytes);  // sparse
  for (const uint64_t offset : {uint64_t{0}, kBytes - 1}) {
    HeldFile file = held(2);
    overwrite(offset, "x");
    EXPECT_EQ(file.look(), Change::kContents) << offset;
  }
}

TEST_F(HeldFileTest, AnotherSizeIsOtherContents) {
  for (const uint64_t bytes : {0, 100, 200'001}) {
    write(path_, std::string(200'000, 'a'));
    HeldFile file = held();
    fs::resize_file(path_, bytes);
    EXPECT_EQ(file.look(), Change::kContents) << bytes;
  }
}

TEST_F(HeldFileTest, ARenameOverItLeavesItAsItWas) {
  HeldFile file = held();
  write(dir_ + "/new", "other weights");
  fs::rename(dir_ + "/new", path_);
  EXPECT_TRUE(file.replaced());
  EXPECT_EQ(file.look(), Change::kNone) << "the file has lost its name, and that is all";
}

TEST_F(HeldFileTest, ALinkThatLeadsElsewhereOrNowhere) {
  fs::create_symlink("weights", dir_ + "/link");
  const HeldFile file = HeldFile::open(dir_ + "/link").value();
  EXPECT_FALSE(file.replaced());
  write(dir_ + "/other", "other weights");
  fs::create_symlink("other", dir_ + "/new");
  fs::rename(dir_ + "/new", dir_ + "/link");
  EXPECT_TRUE(file.replaced());
  fs::remove(dir_ + "/other");
  EXPECT_TRUE(file.replaced());
}

TEST_F(HeldFileTest, WhatCannotBeHeldIsRefused) {
  EXPECT_EQ(HeldFile::open(dir_ + "/absent").status().code(), Code::kNotFound);
  EXPECT_EQ(HeldFile::open(dir_).status().code(), Code::kInvalidArgument);
  const std::string said = in_child([this]() -> std::string {
    const rlimit few{8, 8};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "no limit";
    const Status status = HeldFile::open(path_).status();
    const bool named = status.message().find("ulimit -n") != std::string_view::npos;
    return status.code() == Code::kUnavailable && named ? "" : status.to_string();
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace shoal
