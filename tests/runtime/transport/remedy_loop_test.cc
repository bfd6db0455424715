// A closed loop: the printed commands are run, word for word, in a mount namespace. After that the
// check that refused must pass and the bytes must be available; with one page less it must refuse
// again.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <iostream>
#include <optional>
#include <sched.h>
#include <sstream>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/base/page_size.h"
#include "runtime/transport/remedy.h"

namespace shoal {
namespace {

const auto kPage = static_cast<int64_t>(page_size());
constexpr int kNoNamespace = 77;

/// The part of the facts that a mount decides.
HostFacts look(const std::string& path) {
  HostFacts facts;
  facts.page_bytes = kPage;
  facts.dev_shm.path = path;
  struct statvfs info = {};
  if (::statvfs(path.c_str(), &info) != 0) return facts;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = static_cast<int64_t>(info.f_blocks * info.f_frsize);
  facts.dev_shm.free_bytes = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  facts.dev_shm.total_inodes = static_cast<int64_t>(info.f_files);
  facts.dev_shm.free_inodes = static_cast<int64_t>(info.f_favail);
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string skipped, mounted_at, own, super;
    words >> skipped >> skipped >> skipped >> skipped >> mounted_at >> own;
    if (mounted_at != path) continue;
    while (words >> super) {
    }
    facts.dev_shm.mount_options = own + "," + super;
  }
  const Fd file(::open(path.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  facts.dev_shm.open_errno = file.valid() ? 0 : errno;
  return facts;
}

/// Whether the file system really provides all files of the need at the same time.
bool can_have(const std::string& path, const ShmNeed& need) {
  std::vector<Fd> held;
  for (const Consumer& consumer : need.dev_shm) {
    for (int64_t i = 0; i < consumer.inodes; ++i) {
      held.emplace_back(::open(path.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
      if (!held.back().valid()) return false;
      if (::fallocate(held.back().get(), 0, 0, consumer.bytes / consumer.inodes) != 0) return false;
    }
  }
  return true;
}

bool say(const std::string& what) {
  std::cerr << what << std::endl;
  return false;
}

/// Checks that the need is refused, that the remedy makes it available, and that it is refused
/// again if the mount is one page smaller.
bool closes(const std::string& path, const ShmNeed& need, int64_t headroom, bool has_size) {
  const BudgetOptions options{headroom, 0};
  HostFacts facts = look(path);
  const Status refused = check_budget(need, facts, options);
  if (refused.ok()) return say("was not refused to begin with");
  const auto list = remedies(facts, 2, {{need, refused, headroom, 0}});
  if (list.size() != 1 || list[0].kind != "mount") return say("not one remedy");
  if (list[0].sizes_dev_shm != has_size) return say("whether it has a size is not what it says");
  if (std::system(list[0].text.c_str()) != 0) return say("failed: " + list[0].text);
  facts = look(path);
  if (const Status still = check_budget(need, facts, options); !still.ok())
    return say(list[0].text + ": " + still.to_string());
  if (!can_have(path, need)) return say(list[0].text + ": not all bytes can be had");
  if (!has_size) return true;
  const std::string less = cat(
      "mount --options-mode ignore -o remount,size=", facts.dev_shm.size_bytes - kPage, " ", path);
  if (std::system(less.c_str()) != 0) return say("failed: " + less);
  if (check_budget(need, look(path), options).ok()) return say("one page less is enough too");
  return headroom > 0 || !can_have(path, need) || say("one page less gives all bytes");
}

bool enter_namespace() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
    std::ofstream("/proc/self/gid_map") << "0 " << gid << " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

/// Runs the body in a child's namespace. nullopt if no namespace can be made here.
std::optional<bool> in_namespace(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!enter_namespace()) ::_exit(kNoNamespace);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace) return std::nullopt;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool mount_tmpfs(const std::string& path, const std::string& options, unsigned long flags = 0) {
  return ::mount("tmpfs", path.c_str(), "tmpfs", flags, options.c_str()) == 0 ||
         say(std::strerror(errno));
}

/// Makes a file of another user of the directory, so that the bytes already in use are part of the
/// sum.
bool use(const std::string& path, int64_t bytes) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  return file.valid() && ::fallocate(file.get(), 0, 0, bytes) == 0;
}

#define EXPECT_IN_NAMESPACE(body)                                     \
  do {                                                                \
    const std::optional<bool> done = in_namespace(body);              \
    if (!done) GTEST_SKIP() << "no mount namespace can be made here"; \
    EXPECT_TRUE(*done);                                               \
  } while (false)

TEST(RemedyLoop, TooSmall) {
  const auto slots = static_cast<int64_t>(whole_pages(9641984)),
             pool = static_cast<int64_t>(whole_pages(34213888));
  for (const int64_t headroom : {int64_t{0}, kPage, int64_t{100}, int64_t{1 << 20}}) {
    EXPECT_IN_NAMESPACE([=] {
      return mount_tmpfs("/dev/shm", "size=1048576,mode=1777") &&
             use("/dev/shm/other", 7 * kPage) &&
             closes("/dev/shm", {"shm", {{"slots", 3 * slots, 3}, {"pool", pool, 1}}, {}}, headroom,
                    true);
    });
  }
}

TEST(RemedyLoop, TooSmallAndTooFewInodes) {
  EXPECT_IN_NAMESPACE([] {
    return mount_tmpfs("/dev/shm", "size=65536,nr_inodes=5") && use("/dev/shm/other", kPage) &&
           closes("/dev/shm", {"nccl", {{"files", 16 * kPage, 16}}, {}}, 0, true);
  });
}

TEST(RemedyLoop, TooFewInodes) {
  EXPECT_IN_NAMESPACE([] {
    return mount_tmpfs("/dev/shm", "size=1048576,nr_inodes=5") &&
           closes("/dev/shm", {"nccl", {{"files", 16 * kPage, 16}}, {}}, 0, false);
  });
}

TEST(RemedyLoop, Missing) {
  EXPECT_IN_NAMESPACE([] {
    return mount_tmpfs("/mnt", "size=1048576") &&
           closes("/mnt/none/shm", {"shm", {{"slots", 1024 * kPage, 1}}, {}}, 0, true);
  });
}

TEST(RemedyLoop, ReadOnlyAndTooSmall) {
  EXPECT_IN_NAMESPACE([] {
    return mount_tmpfs("/dev/shm", "size=65536", MS_RDONLY) &&
           closes("/dev/shm", {"shm", {{"slots", 1024 * kPage, 1}}, {}}, 0, true);
  });
}

TEST(RemedyLoop, WhatStartsAContainerHasASizeToo) {
  for (const char* container : {"docker", "kubernetes"}) {
    HostFacts facts;  // without a /dev/shm
    facts.container = container;
    const auto list = remedies(
        facts, 2, {{{"shm", {{"slots", kPage, 1}}, {}}, Status::error(Code::kNotFound, "none")}});
    ASSERT_EQ(list.size(), 1u);
    EXPECT_TRUE(list[0].sizes_dev_shm) << list[0].text;
  }
}

TEST(RemedyLoop, ReadOnly) {
  EXPECT_IN_NAMESPACE([] {
    return mount_tmpfs("/dev/shm", "size=1048576", MS_RDONLY) &&
           closes("/dev/shm", {"shm", {{"slots", 16 * kPage, 1}}, {}}, 0, false);
  });
}

}  // namespace
}  // namespace shoal
