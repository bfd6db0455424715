#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/page_size.h"
#include "runtime/memory/shm_segment.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/facts/host_facts_json.h"
#include "runtime/transport/needs/budget.h"
#include "tests/in_child.h"

namespace shoal {
namespace {

/// Facts of real mounts, in the mount namespace of a child, so that nothing of it is seen outside.

const auto kPage = static_cast<int64_t>(page_size());

bool write_text(const char* path, const std::string& text) {
  const Fd fd(::open(path, O_WRONLY | O_CLOEXEC));
  return fd.valid() &&
         ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// Enters a new mount namespace, if necessary as root of a user namespace. That one needs the id
/// maps, because without them no user would own new files and none could be made.
bool leave_mounts() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const uid_t user = ::getuid();
  const gid_t group = ::getgid();
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
         write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", cat("0 ", user, " 1")) &&
         write_text("/proc/self/gid_map", cat("0 ", group, " 1"));
}

/// Runs the body in a child with a private mount table. Returns "", what is wrong, or "skip: ..."
/// if that is forbidden.
std::string with_own_mounts(const std::function<std::string()>& body) {
  return in_child([&]() -> std::string {
    if (!leave_mounts()) return cat("skip: no mount namespace, errno ", errno);
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return cat("skip: mounts cannot be made private, errno ", errno);
    }
    return body();
  });
}

bool mount_shm(const std::string& options, unsigned long flags = 0) {
  return ::mount("tmpfs", "/dev/shm", "tmpfs", flags, options.c_str()) == 0;
}

HostFacts facts_of_dev_shm(int64_t probe_bytes = 0) {
  FactsRequest request;
  request.probe_bytes = probe_bytes;
  request.probe_cma = false;
  HostFacts facts = gather_host_facts(request);
  facts.cgroup = {};  // shortages of this machine do not matter here
  return facts;
}

Code budget_code(int64_t bytes, const HostFacts& facts) {
  return check_budget({"shm", {{"slots", bytes, 1}}, {}}, facts, {}).code();
}

#define EXPECT_WITH_OWN_MOUNTS(...)                        \
  do {                                                     \
    const std::string said = with_own_mounts(__VA_ARGS__); \
    if (said.starts_with("skip")) GTEST_SKIP() << said;    \
    EXPECT_EQ(said, "");                                   \
  } while (false)

/// For use in a child: returns the failed condition from the body. The body returns "" if all hold.
#define REQUIRE(condition) \
  if (!(condition)) return std::string(cat(__LINE__, ": ", #condition, ": ", to_json(facts)))

class ShmOfSize : public testing::TestWithParam<int64_t> {};

/// The kernel must allow what the arithmetic allows and refuse what it refuses, to the page.
TEST_P(ShmOfSize, IsMeasuredToThePage) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    const int64_t size = GetParam();
    if (!mount_shm(cat("size=", size))) return cat("skip: mount, errno ", errno);
    HostFacts facts = facts_of_dev_shm(size);
    REQUIRE(facts.dev_shm.exists && facts.dev_shm.open_errno == 0);
    REQUIRE(facts.dev_shm.fs_type == "tmpfs");
    REQUIRE(facts.dev_shm.mount_options.find(cat("size=", size / 1024, "k")) != std::string::npos);
    REQUIRE(facts.dev_shm.size_bytes == size && facts.dev_shm.free_bytes == size);
    REQUIRE(facts.dev_shm.probed_bytes == size && facts.dev_shm.probe_errno == 0);
    REQUIRE(budget_code(size, facts) == Code::kOk);
    REQUIRE(budget_code(size + kPage, facts) == Code::kResourceExhausted);
    REQUIRE(ShmSegment::create(static_cast<size_t>(size)).ok());
    REQUIRE(!ShmSegment::create(static_cast<size_t>(size + kPage)).ok());
    facts = facts_of_dev_shm(size + kPage);
    REQUIRE(facts.dev_shm.probed_bytes == 0 && !facts.dev_shm.probe_note.empty());
    REQUIRE(facts.dev_shm.free_bytes == size);

    const Result<ShmSegment> others = ShmSegment::create(kPage);
    REQUIRE(others.ok());
    facts = facts_of_dev_shm();
    REQUIRE(facts.dev_shm.free_bytes == size - kPage);
    REQUIRE(budget_code(size, facts) == Code::kResourceExhausted);
    return "";
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmOfSize, testing::Values(kPage, 1 << 20, 64 << 20));

TEST(ShmMounts, WithoutALimit) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=0,nr_inodes=0")) return cat("skip: mount, errno ", errno);
    const HostFacts facts = facts_of_dev_shm(1 << 20);
    REQUIRE(facts.dev_shm.size_bytes == 0 && facts.dev_shm.total_inodes == 0 &&
            facts.dev_shm.open_errno == 0);
    REQUIRE(facts.dev_shm.probed_bytes == 1 << 20 && facts.dev_shm.probe_errno == 0);
    REQUIRE(budget_code(1 << 20, facts) == Code::kOk);
    return "";
  });
}

TEST(ShmMounts, WithoutAnInodeToSpare) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=1m,nr_inodes=1")) return cat("skip: mount, errno ", errno);
    const HostFacts facts = facts_of_dev_shm(kPage);
    REQUIRE(facts.dev_shm.total_inodes == 1 && facts.dev_shm.free_inodes == 0);
    REQUIRE(facts.dev_shm.open_errno == ENOSPC && facts.dev_shm.probed_bytes == 0);
    REQUIRE(budget_code(kPage, facts) == Code::kResourceExhausted);
    return "";
  });
}

TEST(ShmMounts, ReadOnly) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=1m", MS_RDONLY)) return cat("skip: mount, errno ", errno);
    const HostFacts facts = facts_of_dev_shm(kPage);
    REQUIRE(facts.dev_shm.open_errno == EROFS && facts.dev_shm.mount_options.starts_with("ro"));
    REQUIRE(budget_code(kPage, facts) == Code::kPermissionDenied);
    return "";
  });
}

TEST(ShmMounts, NoexecIsNoHindrance) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=1m", MS_NOEXEC | MS_NOSUID | MS_NODEV))
      return cat("skip: mount, errno ", errno);
    const HostFacts facts = facts_of_dev_shm(1 << 20);
    REQUIRE(facts.dev_shm.mount_options.find("noexec") != std::string::npos);
    REQUIRE(facts.dev_shm.open_errno == 0 && facts.dev_shm.probe_errno == 0);
    REQUIRE(ShmSegment::create(1 << 20).ok());
    return "";
  });
}

TEST(ShmMounts, AnotherUsersAlone) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=1m,mode=0700")) return cat("skip: mount, errno ", errno);
    if (::setresuid(65534, 65534, 65534) != 0) return "skip: no second user";
    const HostFacts facts = facts_of_dev_shm(kPage);
    REQUIRE(facts.dev_shm.exists && facts.dev_shm.open_errno == EACCES);
    REQUIRE(budget_code(kPage, facts) == Code::kPermissionDenied);
    return "";
  });
}

TEST(ShmMounts, HiddenByAMountAbove) {
  EXPECT_WITH_OWN_MOUNTS([]() -> std::string {
    if (!mount_shm("size=1m") || ::mount("tmpfs", "/dev", "tmpfs", 0, "size=2m") != 0) {
      return cat("skip: mount, errno ", errno);
    }
    HostFacts facts = facts_of_dev_shm(kPage);
    REQUIRE(!facts.dev_shm.exists && facts.dev_shm.open_errno == ENOENT);
    REQUIRE(budget_code(kPage, facts) == Code::kNotFound);
    REQUIRE(::mkdir("/dev/shm", 0777) == 0);
    facts = facts_of_dev_shm(kPage);
    REQUIRE(facts.dev_shm.mount_options.find("size=2048k") != std::string::npos);
    REQUIRE(budget_code(kPage, facts) == Code::kOk);
    return "";
  });
}

TEST(ShmMounts, AFileInTheDirectorysPlace) {
  FactsRequest request;
  request.shm_dir = "/proc/self/status";
  request.probe_cma = false;
  EXPECT_EQ(budget_code(kPage, gather_host_facts(request)), Code::kNotFound);
}

}  // namespace
}  // namespace shoal
