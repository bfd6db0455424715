#include "runtime/transport/needs/budget.h"

#include <cerrno>
#include <gtest/gtest.h>
#include <limits>

namespace shoal {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kNeed = 513 * kPage;

ShmNeed shm_need() {
  return {"shm", {{"slots", kNeed, 1}}, {}};
}

ShmNeed memfd_need() {
  return {"memfd", {}, {{"slots", kNeed, 1}}};
}

/// Facts of a tmpfs with exactly the bytes that shm_need() takes, and no limits.
HostFacts exact_facts() {
  HostFacts facts;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = 64 << 20;
  facts.dev_shm.free_bytes = kNeed;
  facts.dev_shm.total_inodes = 100;
  facts.dev_shm.free_inodes = 1;
  return facts;
}

void expect_refused(const Status& status, Code code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  for (const std::string& word : words) {
    EXPECT_NE(status.to_string().find(word), std::string::npos)
        << word << " is not in " << status.to_string();
  }
}

TEST(Budget, ExactFitsAndOnePageLessDoesNot) {
  HostFacts facts = exact_facts();
  EXPECT_TRUE(check_budget(shm_need(), facts, {}).ok());
  facts.dev_shm.free_bytes -= kPage;
  expect_refused(
      check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
      {"it needs 2101248 B in /dev/shm", "; 2097152 B of 67108864 B (64.0 MiB) are free"});
  facts.dev_shm.free_bytes = kNeed - 1;
  EXPECT_FALSE(check_budget(shm_need(), facts, {}).ok());
}

TEST(Budget, HeadroomIsLeftFree) {
  HostFacts facts = exact_facts();
  facts.dev_shm.free_bytes += 10 * kPage;
  EXPECT_TRUE(check_budget(shm_need(), facts, {10 * kPage, 0}).ok());
  expect_refused(check_budget(shm_need(), facts, {10 * kPage + 1, 0}), Code::kResourceExhausted,
                 {"and 40961 B left free"});
}

TEST(Budget, ALeastNeedIsLeftToTheReservation) {
  HostFacts facts = exact_facts();
  facts.dev_shm.free_bytes = kPage;
  ShmNeed need = shm_need();
  expect_refused(check_before_reserving(need, facts, {}), Code::kResourceExhausted,
                 {"needs 2101248 B (2.0 MiB) in /dev/shm"});
  need.bound = Bound::kAtMost;
  expect_refused(check_before_reserving(need, facts, {}), Code::kResourceExhausted,
                 {"needs at most 2101248 B (2.0 MiB) in /dev/shm"});
  need.bound = Bound::kAtLeast;
  EXPECT_TRUE(check_before_reserving(need, facts, {}).ok());
  expect_refused(check_budget(need, facts, {}), Code::kResourceExhausted,
                 {"needs at least 2101248 B (2.0 MiB) in /dev/shm"});
  // Taking the bytes would be a signal beyond these limits, and there is nothing to try without a
  // directory.
  HostFacts limited = facts;
  limited.limits.fsize_bytes = kNeed - 1;
  expect_refused(check_before_reserving(need, limited, {}), Code::kResourceExhausted,
                 {"ulimit -f"});
  limited = facts;
  limited.memory_available_bytes = kNeed - 1;
  expect_refused(check_before_reserving(need, limited, {}), Code::kResourceExhausted,
                 {"needs at least 2101248 B (2.0 MiB) of memory"});
  limited = facts;
  limited.dev_shm.exists = false;
  EXPECT_EQ(check_before_reserving(need, limited, {}).code(), Code::kNotFound);
}

TEST(Budget, AHeadroomBeyondEverySumIsRefused) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  expect_refused(check_budget(shm_need(), exact_facts(), {most, 0}), Code::kResourceExhausted,
                 {cat(most)});
  HostFacts facts = exact_facts();
  facts.cgroup = {2, {{"/sys/fs/cgroup", int64_t{1} << 40, 0, 0, false}}};
  expect_refused(check_budget(shm_need(), facts, {0, most}), Code::kResourceExhausted,
                 {"memory cgroup"});
  EXPECT_TRUE(check_budget(memfd_need(), exact_facts(), {most, 0}).ok())
      << "it is of /dev/shm alone";
}

TEST(Budget, SizeZeroIsNoLimit) {
  HostFacts facts = exact_facts();
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = 0;
  facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 0;
  EXPECT_TRUE(check_budget(shm_need(), facts, {1 << 30, 0}).ok());
}

TEST(Budget, InodesToTheOne) {
  HostFacts facts = exact_facts();
  facts.dev_shm.free_inodes = 0;
  facts.dev_shm.open_errno = ENOSPC;  // the error that a tmpfs with nr_inodes=1 gives
  expect_refused(check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
                 {"1 inode ", "0 of 100 are free"});
  facts.dev_shm.free_inodes = 1;
  expect_refused(check_budget({"many", {{"three files", kNeed, 3}}, {}}, facts, {}),
                 Code::kResourceExhausted, {"3 inodes ", "1 of 100 is free"});
}

TEST(Budget, MemoryComesFirstAndCountsWhatIsReserved) {
  HostFacts facts = exact_facts();
  facts.cgroup = {
      2, {{"/sys/fs/cgroup", kNeed + 1000 + 50, 100, 50, false}, {"/", -1, 1 << 30, 0, false}}};
  EXPECT_EQ(facts.cgroup.available_bytes(), kNeed + 1000);
  EXPECT_TRUE(check_budget(shm_need(), facts, {0, 1000}).ok());
  EXPECT_TRUE(check_budget(memfd_need(), facts, {0, 1000}).ok());
  expect_refused(check_budget(memfd_need(), facts, {0, 1001}), Code::kResourceExhausted,
                 {"needs 2101248 B (2.0 MiB) of memory beside 1001 B ",
                  "the memory cgroup has 2102248 B (2.0 MiB) left"});
  facts.dev_shm.exists = false;  // memory is reported before a missing directory
  expect_refused(check_budget(shm_need(), facts, {0, 1001}), Code::kResourceExhausted,
                 {"memory cgroup"});
  expect_refused(check_budget(shm_need(), facts, {0, 1000}), Code::kNotFound,
                 {"/dev/shm, which is missing"});
  // The headroom is for other users of the directory. It does not apply to the cgroup.
  EXPECT_TRUE(check_budget(memfd_need(), facts, {1 << 30, 1000}).ok());
}

TEST(Budget, TheTightestLevelCounts) {
  CgroupFacts cgroup{
      2, {{"/a/b", 1000, 100, 0, false}, {"/a", 2000, 1900, 50, false}, {"/", -1, 5000, 0, false}}};
  EXPECT_EQ(cgroup.available_bytes(), 150);
  cgroup.levels[1].usage_bytes = 3000;
  EXPECT_EQ(cgroup.available_bytes(), 0);
  EXPECT_EQ(CgroupFacts().available_bytes(), -1);
}

TEST(Budget, TheMachinesMemoryToo) {
  HostFacts facts = exact_facts();
  facts.memory_available_bytes = kNeed;
  EXPECT_TRUE(check_budget(shm_need(), facts, {0, 1 << 30}).ok());
  facts.memory_available_bytes = kNeed - 1;
  expect_refused(check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
                 {"the machine has 2101247 B (2.0 MiB) available"});
}

TEST(Budget, OnlyATmpfsThatCanBeWritten) {
  for (const char* type : {"ext4", "overlay", "ramfs", "hugetlbfs", "devtmpfs"}) {
    HostFacts facts = exact_facts();
    facts.dev_shm.fs_type = type;
    expect_refused(check_budget(shm_need(), facts, {}), Code::kPermissionDenied,
                   {type, "no tmpfs"});
    EXPECT_TRUE(check_budget(memfd_need(), facts, {}).ok());
  }
  HostFacts facts = exact_facts();
  facts.dev_shm.fs_type = "";
  EXPECT_TRUE(check_budget(shm_need(), facts, {}).ok()) << "not known forbids nothing";
  for (const int error : {EROFS, EACCES, EPERM, ELOOP}) {
    facts.dev_shm.open_errno = error;
    expect_refused(check_budget(shm_need(), facts, {}), Code::kPermissionDenied,
                   {"no file can be made"});
    EXPECT_EQ(check_budget(shm_need(), facts, {}).causes().front().os_error, error);
  }
  facts.dev_shm.open_errno = EMFILE;
  expect_refused(check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
                 {"no file could be made"});
}

TEST(Budget, FileSizeLimitCountsFilesAndMemfdsNotPrivateMemory) {
  HostFacts facts = exact_facts();
  facts.limits.fsize_bytes = kNeed;
  EXPECT_TRUE(check_budget(shm_need(), facts, {}).ok());
  EXPECT_TRUE(check_budget(memfd_need(), facts, {}).ok());
  facts.limits.fsize_bytes = kNeed - 1;
  expect_refused(
      check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
      {"a file of 2101248 B (2.0 MiB); the file size limit is 2101247 B (2.0 MiB) (ulimit -f)"});
  expect_refused(check_budget(memfd_need(), facts, {}), Code::kResourceExhausted, {"ulimit -f"});
  ShmNeed need = memfd_need();
  need.memory[0].inodes = 0;
  EXPECT_TRUE(check_budget(need, facts, {}).ok());
  facts.dev_shm.free_inodes = 3;
  EXPECT_TRUE(check_budget({"many", {{"three files", kNeed, 3}}, {}}, facts, {}).ok());
}

TEST(Budget, AFailedTrySpeaksAgainstNeedsOfItsSize) {
  HostFacts facts = exact_facts();
  facts.dev_shm.probed_bytes = kNeed;
  EXPECT_TRUE(check_budget(shm_need(), facts, {}).ok());
  facts.dev_shm.probe_errno = ENOMEM;
  facts.dev_shm.probe_note = "killed by signal 9";
  expect_refused(
      check_budget(shm_need(), facts, {}), Code::kResourceExhausted,
      {"needs 2101248 B (2.0 MiB) in /dev/shm; a try to allocate 2101248 B (2.0 MiB) there",
       "killed by signal 9"});
  EXPECT_TRUE(check_budget({"lean", {{"slots", kNeed - kPage, 1}}, {}}, facts, {}).ok());
  EXPECT_TRUE(check_budget(memfd_need(), facts, {}).ok());
}

TEST(Budget, OpenFilesAreTheLastWord) {
  HostFacts facts = exact_facts();
  ShmNeed need = shm_need();
  need.descriptors = 80;
  EXPECT_TRUE(check_budget(need, facts, {}).ok()) << "no limit";
  facts.limits.nofile = 80;
  EXPECT_TRUE(check_budget(need, facts, {}).ok());
  facts.limits.nofile = 79;
  expect_refused(check_budget(need, facts, {}), Code::kResourceExhausted,
                 {"80 open files; the limit is 79"});
  facts.dev_shm.exists = false;
  expect_refused(check_budget(need, facts, {}), Code::kNotFound,
                 {"missing", "; besides, a process needs 80 open files"});
}

TEST(Budget, NothingIsNeededOfAnEmptyPlace) {
  EXPECT_TRUE(check_budget({"tcp", {}, {}}, HostFacts(), {}).ok());
}

}  // namespace
}  // namespace shoal
