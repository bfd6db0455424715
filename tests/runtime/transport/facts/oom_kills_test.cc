// How many processes the kernel ended for want of memory, from recorded trees and from this
// machine. tests/server/shmtest has a group that runs out of it.
#include "runtime/transport/facts/oom_kills.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

class OomKillsTest : public testing::Test {
 protected:
  ~OomKillsTest() override { std::filesystem::remove_all(root_); }
  void file(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  OomKills read() const { return oom_kills({root_}); }

  const std::string root_ = cat(testing::TempDir(), "oom-kills-", ::getpid());
};

TEST_F(OomKillsTest, OfVersionTwo) {
  file("/proc/self/cgroup", "0::/app\n");
  file("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  file("/proc/vmstat", "pgfault 5\noom_kill 7\n");
  file("/sys/fs/cgroup/app/memory.current", "4096\n");
  file("/sys/fs/cgroup/app/memory.events", "low 0\noom 9\noom_kill 3\noom_group_kill 0\n");
  EXPECT_EQ(read().of_group, 3);
  EXPECT_EQ(read().of_machine, 7);
}

TEST_F(OomKillsTest, OfVersionOne) {
  file("/proc/self/cgroup", "4:memory:/app\n");
  file("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  file("/sys/fs/cgroup/memory/app/memory.usage_in_bytes", "4096\n");
  file("/sys/fs/cgroup/memory/app/memory.oom_control",
       "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(read().of_group, 2);
  EXPECT_FALSE(read().of_machine);
}

TEST_F(OomKillsTest, WhereNothingCanBeReadAnythingMayBe) {
  const OomKills nothing = read();
  EXPECT_FALSE(nothing.of_group || nothing.of_machine);
  EXPECT_TRUE(nothing.may_have_grown_since(nothing));
}

TEST_F(OomKillsTest, OneNumberThatHasGrownIsEnough) {
  const OomKills before{3, 7};
  EXPECT_FALSE((OomKills{3, 7}).may_have_grown_since(before));
  EXPECT_TRUE((OomKills{4, 7}).may_have_grown_since(before));
  EXPECT_TRUE((OomKills{3, 8}).may_have_grown_since(before)) << "of a group below, or above";
  EXPECT_FALSE((OomKills{std::nullopt, 7}).may_have_grown_since(before));
  EXPECT_TRUE((OomKills{std::nullopt, 8}).may_have_grown_since(before));
}

// This machine's own numbers can be read, or a kill from outside could not be told from another.
TEST_F(OomKillsTest, OfThisMachine) {
  if (!number_after(text_of("/proc/vmstat"), "oom_kill"))
    GTEST_SKIP() << "this kernel does not count its kills";
  EXPECT_TRUE(oom_kills().of_machine);
}

}  // namespace
}  // namespace shoal
