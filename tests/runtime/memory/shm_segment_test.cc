#include "runtime/memory/shm_segment.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <set>
#include <signal.h>
#include <string>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/cat.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.insert(entry.path().filename());
  return names;
}

constexpr char kNoMounts[] = "no mounts";

/// Mounts a /dev/shm of one mebibyte that only this process sees. Returns false if the kernel or a
/// container forbids it.
bool mount_small_shm(const char* options) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0;
}

/// Makes O_TMPFILE fail in this process, as it does on some file systems. Returns false if no
/// filter may be installed.
bool forbid_unnamed_files() {
  // The lower half of openat's flags.
  constexpr uint32_t kFlags = offsetof(seccomp_data, args) + 2 * sizeof(uint64_t);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(ShmSegmentTest, BytesAreZeroReservedSharedAndNameless) {
  const std::set<std::string> before = names_in("/dev/shm");
  auto made = ShmSegment::create(1 << 20);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(names_in("/dev/shm"), before);
  struct stat facts;
  ASSERT_EQ(::fstat(made->fd(), &facts), 0);
  EXPECT_EQ(facts.st_size, 1 << 20);
  EXPECT_GE(facts.st_blocks * 512, 1 << 20) << "sparse";
  EXPECT_EQ(facts.st_nlink, 0u);
  EXPECT_TRUE(::fcntl(made->fd(), F_GETFD) & FD_CLOEXEC);
  for (size_t at = 0; at < made->size(); at += 512) ASSERT_EQ(made->data()[at], std::byte{0});

  auto mapped = ShmSegment::open(made->fd(), 8192);
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  std::memcpy(made->data() + 8000, "shoal", 6);
  EXPECT_STREQ(reinterpret_cast<const char*>(mapped->data() + 8000), "shoal");
}

TEST(ShmSegmentTest, MappingOutlivesItsMaker) {
  auto made = ShmSegment::create(4096);
  ASSERT_TRUE(made.ok());
  auto mapped = ShmSegment::open(made->fd(), 4096);
  ASSERT_TRUE(mapped.ok());
  made->data()[7] = std::byte{9};
  { const ShmSegment gone = std::move(*made); }
  EXPECT_EQ(made->data(), nullptr);
  const ShmSegment moved = std::move(*mapped);
  EXPECT_EQ(moved.data()[7], std::byte{9});
}

TEST(ShmSegmentTest, WrongSizesAndDescriptorsAreRefused) {
  EXPECT_EQ(ShmSegment::create(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ShmSegment::create(std::numeric_limits<size_t>::max()).status().code(),
            Code::kInvalidArgument);
  auto made = ShmSegment::create(4096);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(ShmSegment::open(made->fd(), 0).status().code(), Code::kInvalidArgument);
  const Status larger = ShmSegment::open(made->fd(), 4097).status();
  EXPECT_EQ(larger.code(), Code::kInvalidArgument);
  EXPECT_NE(larger.to_string().find("4096 bytes, 4097"), std::string::npos) << larger.to_string();
  EXPECT_EQ(ShmSegment::open(-1, 4096).status().code(), Code::kInvalidArgument);
  const Fd device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ShmSegment::open(device.get(), 4096).status().code(), Code::kInvalidArgument);
}

TEST(ShmSegmentTest, MissingDirectoryIsNotFound) {
  const Status missing = ShmSegment::create(4096, "/dev/shm/no/such/place").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.to_string().find("/dev/shm/no/such/place"), std::string::npos);
  EXPECT_EQ(ShmSegment::create(4096, "/dev/null").status().code(), Code::kNotFound);
}

TEST(ShmSegmentTest, MoreThanThereIsIsRefusedWithNumbersAndLeavesNothing) {
  const std::set<std::string> before = names_in("/dev/shm");
  const size_t bytes = size_t{1} << 50;
  const Status status = ShmSegment::create(bytes).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.to_string().find(cat(bytes, " B (1048576.0 GiB) in /dev/shm")),
            std::string::npos)
      << status.to_string();
  EXPECT_NE(status.to_string().find("iB) free"), std::string::npos) << status.to_string();
  EXPECT_EQ(names_in("/dev/shm"), before);
}

TEST(ShmSegmentTest, MemfdIsReservedSealedAndShared) {
  const std::set<std::string> before = names_in("/dev/shm");
  auto made = ShmSegment::create_memfd(1 << 20);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ(names_in("/dev/shm"), before);
  struct stat facts;
  ASSERT_EQ(::fstat(made->fd(), &facts), 0);
  EXPECT_GE(facts.st_blocks * 512, 1 << 20) << "sparse";
  EXPECT_TRUE(::fcntl(made->fd(), F_GETFD) & FD_CLOEXEC);
  EXPECT_EQ(::fcntl(made->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(made->fd(), 0), 0);
  EXPECT_NE(::ftruncate(made->fd(), 2 << 20), 0);
  auto mapped = ShmSegment::open(made->fd(), 1 << 20);
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  made->data()[99] = std::byte{5};
  EXPECT_EQ(mapped->data()[99], std::byte{5});
}

TEST(ShmSegmentTest, IsClearedInItsPlace) {
  for (const bool memfd : {false, true}) {
    constexpr size_t kBytes =
        (size_t{1} << 20) + 4096 + 8;  // no multiple of what is written at once
    auto made = memfd ? ShmSegment::create_memfd(kBytes) : ShmSegment::create(kBytes);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    const auto mapped = ShmSegment::open(made->fd(), kBytes);
    ASSERT_TRUE(mapped.ok());
    std::memset(made->data(), 7, kBytes);
    ASSERT_TRUE(made->clear().ok());
    for (size_t at = 0; at < kBytes; ++at) ASSERT_EQ(mapped->data()[at], std::byte{0}) << at;
  }
}

TEST(ShmSegmentTest, BytesThatCannotBeClearedAreAnError) {
  const std::string text = in_child([] {
    auto made = ShmSegment::create_memfd(size_t{1} << 20);
    if (!made.ok()) return made.status().to_string();
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit { 65536, 65536 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return made->clear().to_string();
  });
  EXPECT_NE(text.find("write zeros at 65536 of 1048576"), std::string::npos) << text;
}

TEST(ShmSegmentTest, MemfdsErrorsAreValues) {
  EXPECT_EQ(ShmSegment::create_memfd(0).status().code(), Code::kInvalidArgument);
  const std::string text = in_child([] {
    const struct rlimit limit { 65536, 65536 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return ShmSegment::create_memfd(1 << 20).status().to_string();
  });
  EXPECT_NE(text.find("65536 B (64 KiB) (ulimit -f)"), std::string::npos) << text;
  const std::string none = in_child([] {
    const struct rlimit limit { 0, 0 };
    ::setrlimit(RLIMIT_NOFILE, &limit);
    return ShmSegment::create_memfd(4096).status().to_string();
  });
  EXPECT_EQ(none.find("RESOURCE_EXHAUSTED"), 0u) << none;
}

// Beyond RLIMIT_FSIZE the kernel kills the process with SIGXFSZ, unless the limit is checked first.
TEST(ShmSegmentTest, FileSizeLimitIsAnErrorNotASignal) {
  const std::string text = in_child([] {
    const struct rlimit limit { 65536, 65536 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return ShmSegment::create(1 << 20).status().to_string();
  });
  EXPECT_NE(text.find("RESOURCE_EXHAUSTED"), std::string::npos) << text;
  EXPECT_NE(text.find("65536 B (64 KiB) (ulimit -f)"), std::string::npos) << text;
}

TEST(ShmSegmentTest, NoDescriptorLeftIsResourceExhausted) {
  const std::string text = in_child([] {
    const struct rlimit limit { 0, 0 };
    ::setrlimit(RLIMIT_NOFILE, &limit);
    return ShmSegment::create(4096).status().to_string();
  });
  EXPECT_NE(text.find("RESOURCE_EXHAUSTED"), std::string::npos) << text;
}

TEST(ShmSegmentTest, FullTmpfsIsAnErrorThatLeavesNothing) {
  const std::string text = in_child([]() -> std::string {
    if (!mount_small_shm("size=1m")) return kNoMounts;
    const auto fits = ShmSegment::create(600 * 1024);
    if (!fits.ok()) return fits.status().to_string();
    const std::string refusal = ShmSegment::create(600 * 1024).status().to_string();
    if (!names_in("/dev/shm").empty()) return "a name is left";
    // The memory that the refused segment had taken is free again.
    const auto rest = ShmSegment::create(400 * 1024);
    return rest.ok() ? refusal : cat("bytes are left: ", rest.status().to_string());
  });
  if (text == kNoMounts) GTEST_SKIP() << "needs a private mount namespace, which is forbidden here";
  EXPECT_NE(text.find("RESOURCE_EXHAUSTED"), std::string::npos) << text;
  EXPECT_NE(text.find("fallocate 614400 B (600 KiB) in /dev/shm: 434176 B (424 KiB) free"),
            std::string::npos)
      << text;
}

constexpr char kNoFilter[] = "no filter";

// Earlier processes with the same pid, which were killed before they could unlink their files, have
// left some names.
TEST(ShmSegmentTest, NamesThatWereLeftAreSteppedOver) {
  const std::string directory = cat(testing::TempDir(), "names-", ::getpid());
  std::filesystem::create_directory(directory);
  const auto create_beside = [&](int left) {
    return in_child([&]() -> std::string {
      if (!forbid_unnamed_files()) return kNoFilter;
      for (int i = 0; i < left; ++i) {
        const std::string name = cat(directory, "/.shoal-", ::getpid(), "-", i);
        const Fd file(::open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      }
      const auto before = names_in(directory);
      const auto made = ShmSegment::create(4096, directory);
      if (before.size() < static_cast<size_t>(left)) return "the names are not there";
      return names_in(directory) == before ? made.status().to_string() : "a name is left, or gone";
    });
  };
  const std::string none = create_beside(0), some = create_beside(3), all = create_beside(1100);
  std::filesystem::remove_all(directory);
  if (none == kNoFilter) GTEST_SKIP() << "needs a seccomp filter, which is forbidden here";
  EXPECT_EQ(none, "OK");
  EXPECT_EQ(some, "OK");
  EXPECT_NE(all.find("File exists"), std::string::npos) << "it goes on for ever: " << all;
}

TEST(ShmSegmentTest, NoInodeLeftIsResourceExhausted) {
  const std::string text = in_child([]() -> std::string {
    if (!mount_small_shm("size=1m,nr_inodes=2")) return kNoMounts;
    const auto last = ShmSegment::create(4096);
    if (!last.ok()) return cat("the first one: ", last.status().to_string());
    return ShmSegment::create(4096).status().to_string();
  });
  if (text == kNoMounts) GTEST_SKIP() << "needs a private mount namespace, which is forbidden here";
  EXPECT_EQ(text.find("RESOURCE_EXHAUSTED"), 0u) << text;
}

TEST(ShmSegmentTest, ReadOnlyIsPermissionDenied) {
  const std::string text = in_child([]() -> std::string {
    if (!mount_small_shm("size=1m")) return kNoMounts;
    if (::mount(nullptr, "/dev/shm", nullptr, MS_REMOUNT | MS_RDONLY, "size=1m") != 0)
      return kNoMounts;
    return ShmSegment::create(4096).status().to_string();
  });
  if (text == kNoMounts) GTEST_SKIP() << "needs a private mount namespace, which is forbidden here";
  EXPECT_EQ(text.find("PERMISSION_DENIED"), 0u) << text;
}

}  // namespace
}  // namespace shoal
