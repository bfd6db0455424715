#include "server/host/host_resources.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sched.h>

namespace shoal {
namespace {

/// A folder with an invented /proc and /sys.
class HostResourcesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "host_resources_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    write("/proc/meminfo",
          "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(HostResourcesTest, WithoutCgroupsTheMachineCounts) {
  const HostResources host = host_resources(root_);
  EXPECT_EQ(host.memory_bytes, 8000000ull * 1024);
  EXPECT_EQ(host.cpu_quota, 0);
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(static_cast<int>(host.cpus.size()), CPU_COUNT(&mask));
  for (const int cpu : host.cpus) EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(cpu), &mask));
  EXPECT_EQ(host.usable_cpus(), CPU_COUNT(&mask));
}

TEST_F(HostResourcesTest, Version2LimitsAtEveryLevel) {
  write("/proc/self/cgroup", "0::/pod/container\n");
  write("/sys/fs/cgroup/pod/memory.max", "3000000000\n");
  write("/sys/fs/cgroup/pod/memory.current", "1500000000\n");
  write("/sys/fs/cgroup/pod/memory.stat",
        "anon 1000000000\ninactive_file 400000000\nactive_file 5\n");
  write("/sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  write("/sys/fs/cgroup/pod/container/memory.current", "1400000000\n");
  write("/sys/fs/cgroup/pod/container/cpu.max", "50000 100000\n");
  const HostResources host = host_resources(root_);
  EXPECT_EQ(host.memory_bytes, 3000000000u - (1500000000u - 400000000u));
  EXPECT_EQ(host.cpu_quota, 0.5);
  EXPECT_EQ(host.usable_cpus(), 1);
}

TEST_F(HostResourcesTest, WhatIsThrottledCountsAsALimit) {
  write("/proc/self/cgroup", "0::/pod\n");
  write("/sys/fs/cgroup/pod/memory.max", "3000000000\n");
  write("/sys/fs/cgroup/pod/memory.high", "2000000000\n");
  write("/sys/fs/cgroup/pod/memory.current", "500000000\n");
  EXPECT_EQ(host_resources(root_).memory_bytes, 1500000000u);
}

TEST_F(HostResourcesTest, InsideAContainerTheMountIsTheGroup) {
  write("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");  // this path is the host's
  write("/sys/fs/cgroup/memory.max", "1000000\n");
  write("/sys/fs/cgroup/memory.current", "2000000\n");  // it is over its limit already
  EXPECT_EQ(host_resources(root_).memory_bytes, 0u);
}

// systemd's hybrid layout: version 1 below the mount, and version 2 in a folder of its own.
TEST_F(HostResourcesTest, Version2BesideVersion1) {
  write("/proc/self/cgroup", "1:name=systemd:/x\n0::/pod\n");
  write("/sys/fs/cgroup/unified/pod/memory.max", "3000000\n");
  write("/sys/fs/cgroup/unified/pod/memory.current", "1000000\n");
  EXPECT_EQ(host_resources(root_).memory_bytes, 2000000u);
}

TEST_F(HostResourcesTest, Version1) {
  write("/proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/x\nnonsense\n");
  write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2000000000\n");
  write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "500000000\n");
  write("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 100000000\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "900000000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  const HostResources host = host_resources(root_);
  EXPECT_EQ(host.memory_bytes, 2000000000u - 400000000u);
  EXPECT_EQ(host.cpu_quota, 2.5);
}

TEST(HostResources, OfEachDeviceARanksShareAndWhatOthersHave) {
  GpuFacts gpu;
  gpu.asked = true;
  gpu.ranks = 4;
  gpu.ranks_per_gpu = 2;
  gpu.devices.resize(3);
  gpu.devices[0].bytes = 1000;
  gpu.devices[0].free_bytes = 800;
  gpu.devices[1].bytes = 900;  // what is free there is not known
  gpu.devices[2].bytes = 100;  // which no rank uses
  gpu.devices[2].free_bytes = 0;
  const HostResources host = host_resources(gpu);
  ASSERT_EQ(host.devices.size(), 2u);
  EXPECT_EQ(host.devices[0].bytes, 500u);
  EXPECT_EQ(host.devices[0].taken_bytes, 100u);
  EXPECT_EQ(host.devices[1].bytes, 450u);
  EXPECT_EQ(host.devices[1].taken_bytes, 0u);
}

TEST(HostResources, QuotaRoundsUp) {
  HostResources host;
  host.cpus = {0, 1, 2, 3, 4, 5, 6, 7};
  host.cpu_quota = 2.5;
  EXPECT_EQ(host.usable_cpus(), 3);
  host.cpu_quota = 100;
  EXPECT_EQ(host.usable_cpus(), 8);
  host.cpu_quota = 0.1;
  EXPECT_EQ(host.usable_cpus(), 1);
}

}  // namespace
}  // namespace shoal
