#include "runtime/transport/facts/stale_segments.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/transport/facts/fact_names.h"
#include "tests/child_process.h"

namespace shoal {
namespace {

constexpr uid_t kNobody = 65534;

/// The sizes that these tests give to NCCL's files.
bool is_nccl_size(int64_t bytes) {
  return bytes == 8192;
}

class StaleSegments : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = "/dev/shm/stale_segments_test-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) {
      path = "/tmp/stale_segments_test-XXXXXX";
      ASSERT_NE(::mkdtemp(path.data()), nullptr);
    }
    directory_ = path;
    directory_fd_.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  /// Leaves a file that nobody has open, of 8192 bytes unless `bytes` says otherwise.
  void leave(const std::string& name, int64_t bytes = 8192) const {
    const Fd file(::open(path(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    ASSERT_TRUE(file.valid()) << std::strerror(errno);
    if (bytes > 0) {
      ASSERT_EQ(::fallocate(file.get(), 0, 0, bytes), 0);
    }
  }
  std::string state(const std::string& name) const {
    for (const LeftFile& file : find_left_files(directory_, is_nccl_size))
      if (file.path == path(name)) return to_text(file.state);
    return "not looked at";
  }
  SegmentId id_of(const std::string& name) const {
    struct stat info = {};
    EXPECT_EQ(::stat(path(name).c_str(), &info), 0) << name;
    return {info.st_dev, info.st_ino};
  }
  bool exists(const std::string& name) const { return ::access(path(name).c_str(), F_OK) == 0; }
  /// Checks that remove_stale keeps every file.
  void expect_kept() const {
    const auto before = std::distance(std::filesystem::directory_iterator(directory_), {});
    const auto result = remove_stale(directory_, is_nccl_size);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->removed.size(), 0u);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), before);
  }

  std::string directory_;
  Fd directory_fd_;
};

TEST_F(StaleSegments, StaleOnesAreFoundAndRemoved) {
  leave("nccl-a1B2c3");
  // Shoal's own are always empty: a name exists only for a moment, before anything is in the file.
  const timespec old[2] = {{::time(nullptr) - 60, 0}, {::time(nullptr) - 60, 0}};
  for (const char* name : {".shoal-12-0", ".shoal-probe-12-34"}) {
    leave(name, 0);
    ASSERT_EQ(::utimensat(AT_FDCWD, path(name).c_str(), old, 0), 0);
  }
  for (const char* other :
       {"nccl-a1B2c", "nccl-a1B2c3d", "nccl-a1B2c_", "sem.x", "psm_1", ".shoal", "xshoal-1"})
    leave(other);
  const auto files = find_left_files(directory_, is_nccl_size);
  ASSERT_EQ(files.size(), 3u);
  for (const LeftFile& file : files) {
    EXPECT_EQ(file.state, LeftFileState::kStale) << file.path;
    EXPECT_EQ(file.bytes, file.path == path("nccl-a1B2c3") ? 8192 : 0);
    EXPECT_EQ(file.uid, ::geteuid());
  }
  const auto result = remove_stale(directory_, is_nccl_size);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->removed.size(), 3u);
  EXPECT_EQ(result->bytes, 8192);
  EXPECT_TRUE(result->kept.empty());
  EXPECT_TRUE(exists("psm_1") && exists("nccl-a1B2c") && exists(".shoal"));
  EXPECT_EQ(remove_stale(directory_, is_nccl_size)->removed.size(), 0u);
}

TEST_F(StaleSegments, FilesThatOnlySoundLikeOursAreSomebodysOwn) {
  for (const char* name :
       {"shoal-requests.jsonl", "shoal-12-0", ".shoal-notes", ".shoal-12", ".shoal-12-",
        ".shoal--0", ".shoal-12-0.bak", ".shoal-probe-12", ".shoal-probe-x-0", ".shoal-probe-"})
    leave(name);
  EXPECT_TRUE(find_left_files(directory_, is_nccl_size).empty());
  expect_kept();
}

TEST_F(StaleSegments, AFileThatOnlyHasANameLikeOursOrNcclsIsKept) {
  leave("nccl-backup", 100'000);
  leave("nccl-config");
  ASSERT_EQ(::chmod(path("nccl-config").c_str(), 0644), 0);
  leave(".shoal-2026-11");
  leave("nccl-a1B2c3");
  for (const char* own : {"nccl-backup", "nccl-config", ".shoal-2026-11"})
    EXPECT_EQ(state(own), "unknown") << own;
  const auto result = remove_stale(directory_, is_nccl_size);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->removed.size(), 1u);
  EXPECT_EQ(result->removed[0].path, path("nccl-a1B2c3"));
  EXPECT_EQ(result->kept.size(), 3u);
  EXPECT_TRUE(exists("nccl-backup") && exists("nccl-config"));
  // Without the sizes of NCCL's segments, nothing counts as one of them.
  leave("nccl-a1B2c3");
  EXPECT_TRUE(remove_stale(directory_, {})->removed.empty());
}

TEST_F(StaleSegments, AFileOpenElsewhereIsInUse) {
  leave("nccl-aaaaaa");
  for (const int flags : {O_RDWR, O_RDONLY}) {
    {
      const ChildProcess child([&] { return ::open(path("nccl-aaaaaa").c_str(), flags) >= 0; });
      ASSERT_TRUE(child.ok());
      EXPECT_EQ(state("nccl-aaaaaa"), "in use");
      expect_kept();
    }
    EXPECT_EQ(state("nccl-aaaaaa"), "stale") << "its holder was killed";
  }
  EXPECT_EQ(remove_stale(directory_, is_nccl_size)->removed.size(), 1u);
}

TEST_F(StaleSegments, AFileOnlyMappedIsInUse) {
  leave("nccl-bbbbbb");
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    const ChildProcess child([&] {
      const int fd =
          ::open(path("nccl-bbbbbb").c_str(), (protection & PROT_WRITE) != 0 ? O_RDWR : O_RDONLY);
      const bool mapped = ::mmap(nullptr, 4096, protection, MAP_SHARED, fd, 0) != MAP_FAILED;
      return ::close(fd) == 0 && mapped;
    });
    ASSERT_TRUE(child.ok());
    EXPECT_EQ(state("nccl-bbbbbb"), "in use");
    expect_kept();
  }
  EXPECT_EQ(state("nccl-bbbbbb"), "stale");
}

TEST_F(StaleSegments, AFileOpenInAnotherPidNamespaceIsInUse) {
  leave("nccl-cccccc");
  bool allowed = true;
  {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const ChildProcess child([&] {
      if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
        return false;
      const pid_t inner = ::fork();
      if (inner == 0) {
        // This is init of the new namespace, which the /proc of a sibling namespace does not show.
        // It ends together with its parent.
        const bool opened = ::getpid() == 1 && ::open(path("nccl-cccccc").c_str(), O_RDWR) >= 0;
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::write(ends[1], opened ? "y" : "n", 1) != 1) ::_exit(1);
        for (;;) ::pause();
      }
      char answer = 'n';
      return inner > 0 && ::read(ends[0], &answer, 1) == 1 && answer == 'y';
    });
    allowed = child.ok();
    if (allowed) {
      EXPECT_EQ(state("nccl-cccccc"), "in use");
      expect_kept();
    }
    ::close(ends[0]);
    ::close(ends[1]);
  }
  if (!allowed) GTEST_SKIP() << "no pid namespace can be made here";
}

TEST_F(StaleSegments, OnlyRegularFilesAreLookedAt) {
  leave("target");
  ASSERT_EQ(::symlink(path("target").c_str(), path("nccl-dddddd").c_str()), 0);
  ASSERT_EQ(::mkdir(path(".shoal-1-1").c_str(), 0700), 0);
  ASSERT_EQ(::mkfifo(path("nccl-ffffff").c_str(), 0600), 0);
  EXPECT_TRUE(find_left_files(directory_, is_nccl_size).empty());
  expect_kept();
}

TEST_F(StaleSegments, AFileWithAnotherNameIsUnknown) {
  leave("nccl-eeeeee");
  ASSERT_EQ(::link(path("nccl-eeeeee").c_str(), path("kept").c_str()), 0);
  EXPECT_EQ(state("nccl-eeeeee"), "unknown");
  expect_kept();
  ASSERT_EQ(::unlink(path("kept").c_str()), 0);
  EXPECT_EQ(state("nccl-eeeeee"), "stale");
}

TEST_F(StaleSegments, AnEmptyFileIsBelievedAfterSeconds) {
  // NCCL leaves an empty file if fallocate fails, but every file is also empty while it is being
  // made.
  leave("nccl-gggggg", 0);
  EXPECT_EQ(state("nccl-gggggg"), "unknown");
  expect_kept();
  const timespec old[2] = {{::time(nullptr) - 60, 0}, {::time(nullptr) - 60, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path("nccl-gggggg").c_str(), old, 0), 0);
  EXPECT_EQ(state("nccl-gggggg"), "stale");
  EXPECT_EQ(remove_stale(directory_, is_nccl_size)->removed.size(), 1u);
}

TEST_F(StaleSegments, AnotherUsersFileIsNeverTouched) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  leave("nccl-hhhhhh");
  ASSERT_EQ(::chown(path("nccl-hhhhhh").c_str(), kNobody, kNobody), 0);
  EXPECT_EQ(state("nccl-hhhhhh"), "other user");
  expect_kept();
  EXPECT_EQ(remove_stale(directory_, is_nccl_size)->kept.at(0).uid, kNobody);
}

TEST_F(StaleSegments, WorksWithoutPrivileges) {
  if (::geteuid() != 0) GTEST_SKIP() << "is what the other tests show here";
  ASSERT_EQ(::chmod(directory_.c_str(), 01777), 0);
  leave("nccl-rooted");
  const ChildProcess child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0) return false;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    leave("nccl-nobody");
    leave("nccl-locked");
    if (::chmod(path("nccl-locked").c_str(), 0) != 0) return false;
    return state("nccl-nobody") == "stale" && state("nccl-rooted") == "other user" &&
           state("nccl-locked") == "unknown" &&
           remove_stale(directory_, is_nccl_size)->removed.size() == 1;
  });
  EXPECT_TRUE(child.ok());
  EXPECT_FALSE(exists("nccl-nobody"));
  EXPECT_TRUE(exists("nccl-rooted") && exists("nccl-locked"));
}

/// Makes fcntl(F_SETLEASE) fail with this errno from now on, as a file system or a container's
/// filter may do.
bool refuse_leases(int error) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_SETLEASE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(code)), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(StaleSegments, WithoutLeasesNothingIsKnownNorRemoved) {
  leave("nccl-iiiiii");
  for (const int error : {EINVAL, EACCES, EPERM, ENOSYS, ENOLCK}) {
    const ChildProcess child([&] {
      if (!refuse_leases(error)) return false;
      return state("nccl-iiiiii") == "unknown" &&
             remove_stale(directory_, is_nccl_size)->removed.empty();
    });
    EXPECT_TRUE(child.ok()) << std::strerror(error);
  }
  EXPECT_TRUE(exists("nccl-iiiiii"));
}

TEST_F(StaleSegments, AReplacedNameStays) {
  for (const bool renamed : {true, false}) {
    leave("nccl-jjjjjj");
    LeftFileLease lease = LeftFileLease::ask(directory_fd_.get(), "nccl-jjjjjj");
    ASSERT_EQ(lease.state(), LeftFileState::kStale);
    if (renamed) {
      ASSERT_EQ(::rename(path("nccl-jjjjjj").c_str(), path("moved").c_str()), 0);
    } else {
      ASSERT_EQ(::unlink(path("nccl-jjjjjj").c_str()), 0);
    }
    leave("nccl-jjjjjj");
    EXPECT_FALSE(lease.unlink_name());
    EXPECT_TRUE(exists("nccl-jjjjjj"));
    ASSERT_EQ(::unlink(path("nccl-jjjjjj").c_str()), 0);
  }
}

TEST_F(StaleSegments, AFileThatSomebodyBeginsToOpenStays) {
  leave("nccl-kkkkkk");
  LeftFileLease lease = LeftFileLease::ask(directory_fd_.get(), "nccl-kkkkkk");
  ASSERT_EQ(lease.state(), LeftFileState::kStale);
  // The open breaks the lease. The signal that announces this must not kill this process.
  const ChildProcess child([&] {
    return ::open(path("nccl-kkkkkk").c_str(), O_RDWR | O_NONBLOCK) < 0 && errno == EAGAIN;
  });
  EXPECT_TRUE(child.ok());
  EXPECT_FALSE(lease.unlink_name());
  EXPECT_TRUE(exists("nccl-kkkkkk"));
}

TEST_F(StaleSegments, FilesBeingMadeSurviveASweepThatNeverStops) {
  // Does what another job does on a shared /dev/shm: makes a file, uses it, and checks that it is
  // still there.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const ChildProcess child([&] {
    if (::fork() != 0) return true;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3000; ++i) {
      std::string name = path("nccl-XXXXXX");
      const int fd = ::mkstemp(name.data());
      struct stat info = {};
      const bool ok = fd >= 0 && ::fallocate(fd, 0, 0, 4096) == 0 && ::fstat(fd, &info) == 0 &&
                      info.st_nlink == 1 && ::unlink(name.c_str()) == 0 && ::close(fd) == 0;
      if (!ok) ::_exit(::write(ends[1], "n", 1) == 1 ? 1 : 2);
    }
    ::_exit(::write(ends[1], "y", 1) == 1 ? 0 : 2);
  });
  char answer = 0;
  int removed = 0;
  while (::read(ends[0], &answer, 1) != 1)
    removed += static_cast<int>(remove_stale(directory_, is_nccl_size)->removed.size());
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(removed, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(StaleSegments, OnlyRecordedFilesAreRemoved) {
  leave("nccl-before");
  leave("nccl-during");
  leave("nccl-emptyx", 0);  // its holder was killed before it could give it a size
  leave("nccl-openxx");
  const Fd open(::open(path("nccl-openxx").c_str(), O_RDONLY | O_CLOEXEC));
  const std::vector<SegmentId> ours = {id_of("nccl-openxx"), id_of("nccl-during"),
                                       id_of("nccl-emptyx")};
  leave("nccl-laterx");
  const auto result = remove_recorded(directory_, ours);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->removed.size(), 2u);
  ASSERT_EQ(result->kept.size(), 1u);
  EXPECT_EQ(result->kept[0].state, LeftFileState::kInUse);
  EXPECT_FALSE(exists("nccl-during") || exists("nccl-emptyx"));
  EXPECT_TRUE(exists("nccl-before") && exists("nccl-openxx") && exists("nccl-laterx"));
  EXPECT_EQ(remove_recorded(directory_, {})->removed.size(), 0u);
}

TEST_F(StaleSegments, FilesThatALogNamesAreRemoved) {
  leave("nccl-AbCd01", 0);  // new and empty, but the log shows that its maker has ended
  leave("nccl-AbCd02");
  leave("nccl-openxx");
  leave("nccl-others");
  const Fd open(::open(path("nccl-openxx").c_str(), O_RDONLY | O_CLOEXEC));
  const SweepResult result = remove_named_in(
      directory_, cat("Error: failed to extend ", path("nccl-AbCd01"), " to 9637892 bytes\n",
                      path("nccl-AbCd02"), "\n", path("nccl-openxx"), " ", path("nccl-AbCd01"),
                      path("nccl-short"), "/dev/shm/nccl-others ", path("nccl-")));
  EXPECT_EQ(result.removed.size(), 2u);
  EXPECT_FALSE(exists("nccl-AbCd01") || exists("nccl-AbCd02"));
  EXPECT_TRUE(exists("nccl-openxx") && exists("nccl-others"));
  EXPECT_EQ(remove_named_in(path("none"), path("nccl-AbCd01")).removed.size(), 0u);
}

TEST_F(StaleSegments, AMissingDirectoryHasNone) {
  EXPECT_TRUE(find_left_files(path("none"), is_nccl_size).empty());
  EXPECT_EQ(remove_stale(path("none"), is_nccl_size).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
