#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include "runtime/base/cat.h"
#include "runtime/transport/facts/cgroup_facts.h"
#include "runtime/transport/facts/cma_facts.h"
#include "runtime/transport/facts/machine_facts.h"
#include "runtime/transport/facts/mount_table.h"

namespace shoal {
namespace {

/// A folder with files of another machine's /proc and /sys.
class FactSources : public testing::Test {
 protected:
  FactSources() {
    char name[] = "/tmp/shoal-facts-XXXXXX";
    paths_.root = ::mkdtemp(name);
  }
  ~FactSources() override { std::filesystem::remove_all(paths_.root); }

  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(paths_.root + path).parent_path());
    std::ofstream(paths_.root + path) << text;
  }

  SystemPaths paths_;
};

constexpr char kV2Mount[] =
    "31 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kV1Mount[] =
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

TEST_F(FactSources, CgroupV2WithEveryAncestor) {
  put("/proc/self/mountinfo", kV2Mount);
  put("/proc/self/cgroup", "0::/kubepods.slice/pod1/ctr\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/ctr/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/ctr/memory.high", "800000000\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/ctr/memory.current", "500000000\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/ctr/memory.oom.group", "1\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/ctr/memory.stat",
      "anon 1\nfile 999999\nshmem 888888\ninactive_anon 777777\ninactive_file 4096\nactive_file 8192\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/memory.max", "900000000\n");
  put("/sys/fs/cgroup/kubepods.slice/pod1/memory.current", "600000000\n");
  put("/sys/fs/cgroup/kubepods.slice/memory.max", "max\n");
  put("/sys/fs/cgroup/kubepods.slice/memory.current", "7\n");
  CgroupFacts facts = cgroup_facts(paths_);
  EXPECT_EQ(facts.version, 2);
  ASSERT_EQ(facts.levels.size(), 3u) << "the root has no such files";
  const std::string top = "/sys/fs/cgroup/kubepods.slice";
  EXPECT_TRUE(facts.levels[0] ==
              (CgroupLevel{top + "/pod1/ctr", 1073741824, 500000000, 8192, true, 800000000}));
  EXPECT_TRUE(facts.levels[1] == (CgroupLevel{top + "/pod1", 900000000, 600000000, 0, false}));
  EXPECT_TRUE(facts.levels[2] == (CgroupLevel{top, -1, 7, 0, false}));
  EXPECT_EQ(facts.available_bytes(), 300000000);
  // Above memory.high nobody is killed, but nobody gets on either.
  facts.levels[0].usage_bytes = 700000000;
  EXPECT_EQ(facts.available_bytes(), 100008192);
  facts.levels[0].usage_bytes = 900000000;
  EXPECT_EQ(facts.available_bytes(), 0);
  facts.levels[0].high_bytes = -1;
  EXPECT_EQ(facts.levels[0].least_limit(), 1073741824);
  count_page_cache_in_full(paths_, &facts);
  EXPECT_EQ(facts.levels[0].reclaimable_bytes, 12288);
  EXPECT_EQ(facts.levels[1].reclaimable_bytes, 0) << "no statistics";
}

TEST_F(FactSources, CgroupV2InANamespaceIsTheMountsRoot) {
  put("/proc/self/mountinfo", kV2Mount);
  put("/sys/fs/cgroup/memory.max", "67108864\n");
  put("/sys/fs/cgroup/memory.current", "1048576\n");
  for (const char* path : {"/", "/../../elsewhere", "/not/visible/here"}) {
    put("/proc/self/cgroup", cat("0::", path, "\n"));
    const CgroupFacts facts = cgroup_facts(paths_);
    ASSERT_EQ(facts.levels.size(), 1u) << path;
    EXPECT_EQ(facts.levels[0].path, "/sys/fs/cgroup");
    EXPECT_EQ(facts.available_bytes(), 66060288);
  }
}

TEST_F(FactSources, CgroupV1WithHugeNumbersAndHiddenParents) {
  put("/proc/self/mountinfo", kV1Mount);
  put("/proc/self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/docker/abc\n0::/\n");
  put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1000000\n");
  put("/sys/fs/cgroup/memory/docker/abc/memory.stat",
      "inactive_file 5\nhierarchical_memory_limit 9223372036854771712\ntotal_inactive_file 2000000\n");
  put("/sys/fs/cgroup/memory/docker/memory.stat",
      "active_file 9\ntotal_inactive_file 300000\ntotal_active_file 100000\n");
  put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "8000000\n");
  put("/sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "3000000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "18446744073709551615\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
  CgroupFacts facts = cgroup_facts(paths_);
  EXPECT_EQ(facts.version, 1);
  ASSERT_EQ(facts.levels.size(), 3u);
  EXPECT_EQ(facts.levels[0].limit_bytes, -1);
  EXPECT_EQ(facts.levels[0].reclaimable_bytes, 1000000) << "no more than is used";
  EXPECT_EQ(facts.levels[2].limit_bytes, -1);
  EXPECT_EQ(facts.available_bytes(), 5300000);
  count_page_cache_in_full(paths_, &facts);
  EXPECT_EQ(facts.levels[0].reclaimable_bytes, 1000000) << "no more than is used";
  EXPECT_EQ(facts.available_bytes(), 5400000);

  // Without a cgroup namespace, Docker mounts only the container's own group. A limit of its parent
  // shows only in the statistics.
  put("/proc/self/mountinfo",
      "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory,hugetlb\n");
  put("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 7000000\n");
  facts = cgroup_facts(paths_);
  ASSERT_EQ(facts.levels.size(), 1u);
  EXPECT_EQ(facts.levels[0].path, "/sys/fs/cgroup/memory");
  EXPECT_EQ(facts.available_bytes(), 3000000);
}

TEST_F(FactSources, NoCgroupOrNonsenseIsNoLimit) {
  EXPECT_EQ(cgroup_facts(paths_).version, 0);
  put("/proc/self/mountinfo", std::string("x\n1 2 3\n36 35 - - - -\n\n") + kV2Mount);
  put("/proc/self/cgroup", "\n:\n::\nmemory\n0:\n0::\n1:memory\n");
  put("/sys/fs/cgroup/memory.max", "-17\n");
  put("/sys/fs/cgroup/memory.current", "many\n");
  EXPECT_EQ(cgroup_facts(paths_).available_bytes(), -1);
}

TEST_F(FactSources, TheTightestLimitOfProcessesCounts) {
  put("/proc/self/status", "Name:\tshoal\nThreads:\t5\n");
  EXPECT_EQ(pids_facts(paths_), (PidsFacts{"", -1, 0, 5}));
  put("/proc/self/mountinfo", kV2Mount);
  put("/proc/self/cgroup", "0::/pod/ctr\n");
  put("/sys/fs/cgroup/pod/ctr/pids.max", "100\n");
  put("/sys/fs/cgroup/pod/ctr/pids.current", "7\n");
  put("/sys/fs/cgroup/pod/pids.max", "200\n");
  put("/sys/fs/cgroup/pod/pids.current", "150\n");
  put("/sys/fs/cgroup/pids.max", "max\n");
  EXPECT_EQ(pids_facts(paths_), (PidsFacts{"/sys/fs/cgroup/pod", 200, 150, 5}));
  // Version 1 counts processes in a hierarchy of its own.
  put("/proc/self/mountinfo",
      "36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n");
  put("/proc/self/cgroup", "5:pids:/docker/abc\n4:memory:/docker/abc\n0::/\n");
  put("/sys/fs/cgroup/pids/docker/abc/pids.max", "64\n");
  put("/sys/fs/cgroup/pids/docker/abc/pids.current", "60\n");
  EXPECT_EQ(pids_facts(paths_), (PidsFacts{"/sys/fs/cgroup/pids/docker/abc", 64, 60, 5}));
}

TEST(MountTable, EscapesOptionalFieldsAndMissingOptions) {
  const auto mounts = parse_mountinfo(
      "36 35 98:1 /a\\040b /mnt/x\\134y\\011z rw,noatime master:1 shared:2 - ext4 /dev/sda1 rw,errors=continue\n"
      "37 35 0:25 / /dev/shm rw - tmpfs tmpfs\n"
      "half a line - tmpfs");
  ASSERT_EQ(mounts.size(), 2u);
  EXPECT_EQ(mounts[0].root, "/a b");
  EXPECT_EQ(mounts[0].point, "/mnt/x\\y\tz");
  EXPECT_EQ(mounts[0].device, makedev(98, 1));
  EXPECT_EQ(mounts[0].options, "rw,noatime");
  EXPECT_EQ(mounts[0].super_options, "rw,errors=continue");
  EXPECT_TRUE(mounts[0].has_super_option("rw"));
  EXPECT_FALSE(mounts[0].has_super_option("errors"));
  EXPECT_EQ(mounts[1].fs_type, "tmpfs");
  EXPECT_EQ(mounts[1].super_options, "");
}

TEST(MountTable, TheLongestPointHoldsAPathAndAmongEqualsTheLast) {
  const auto mounts = parse_mountinfo(
      "1 0 8:1 / / rw - ext4 a rw\n"
      "2 1 0:5 / /dev rw - devtmpfs b rw\n"
      "3 2 0:23 / /dev/shm rw - tmpfs first rw,size=1k\n"
      "4 3 0:27 / /dev/shm rw - tmpfs second rw,size=2k\n"
      "5 2 0:99 / /dev/shm2 rw - tmpfs other rw\n");
  const auto options = [&](const char* path, uint64_t device) {
    const Mount* mount = find_mount(mounts, path, device);
    return mount == nullptr ? "none" : mount->fs_type + " " + mount->super_options;
  };
  EXPECT_EQ(options("/dev/shm", 0), "tmpfs rw,size=2k");
  EXPECT_EQ(options("/dev/shm/sub", makedev(0, 27)), "tmpfs rw,size=2k");
  EXPECT_EQ(options("/dev/shm", makedev(0, 23)), "tmpfs rw,size=1k");
  EXPECT_EQ(options("/dev/shm", makedev(0, 5)), "devtmpfs rw")
      << "hidden by what was mounted on /dev";
  EXPECT_EQ(options("/dev/shm", makedev(9, 9)), "tmpfs rw,size=2k")
      << "another number than the mount's";
  EXPECT_EQ(options("/dev/shmm", 0), "devtmpfs rw");
  EXPECT_EQ(options("/home", 0), "ext4 rw");
  EXPECT_EQ(find_mount({}, "/home", 0), nullptr);
}

TEST_F(FactSources, ContainerKinds) {
  EXPECT_EQ(container_kind(paths_, false), "");
  EXPECT_EQ(container_kind(paths_, true), "kubernetes");
  const std::tuple<const char*, const char*, const char*> signs[] = {
      {"/proc/self/cgroup", "0::/system.slice/docker.service\n", ""},
      {"/proc/self/cgroup", "0::/system.slice/containerd.service\n", ""},
      {"/proc/self/cgroup", "0::/kubepods/burstable/pod1/2\n", "kubernetes"},
      {"/proc/self/cgroup", "4:memory:/docker/0123\n", "docker"},
      {"/proc/self/cgroup", "0::/system.slice/docker-0123.scope\n", "docker"},
      {"/proc/self/cgroup", "0::/user.slice/libpod-0123.scope\n", "podman"},
      {"/proc/self/cgroup", "0::/system.slice/cri-containerd-0123.scope\n", "containerd"},
      {"/proc/self/mountinfo",
       "1 0 8:1 /var/lib/docker/containers/01/hosts /etc/hosts rw - ext4 a rw\n", "docker"},
      {"/proc/self/mountinfo",
       "1 0 8:1 /var/lib/kubelet/pods/0/etc-hosts /etc/hosts rw - ext4 a rw\n", "kubernetes"},
      {"/proc/self/mountinfo",
       "1 0 0:9 / / rw - overlay o rw,lowerdir=/a/io.containerd.snapshotter/1\n", "containerd"},
      {"/proc/self/mountinfo", "1 0 0:9 / /var/lib/docker/containers/01/shm rw - tmpfs shm rw\n",
       ""},
      {"/.dockerenv", "", "docker"},
      {"/run/.containerenv", "", "podman"},
  };
  for (const auto& [path, text, kind] : signs) {
    put(path, text);
    EXPECT_EQ(container_kind(paths_, false), kind) << path << ": " << text;
    std::filesystem::remove(paths_.root + path);
  }
}

TEST_F(FactSources, GpusNodesYamaAndSeccomp) {
  EXPECT_TRUE(gpu_facts(paths_) == GpuFacts());
  EXPECT_EQ(numa_nodes(paths_), 1);
  EXPECT_TRUE(cma_facts(paths_, false) == CmaFacts());
  for (const char* name :
       {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia0x"}) {
    put(std::string("/dev/") + name, "");
  }
  put("/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
      "GCC version:  gcc version 12.2.0\n");
  put("/sys/devices/system/node/node0/x", "");
  put("/sys/devices/system/node/node1/x", "");
  put("/sys/devices/system/node/possible", "0-1");
  put("/proc/sys/kernel/yama/ptrace_scope", "2\n");
  put("/proc/self/status", "Name:\tx\nSeccomp_filters:\t9\nSeccomp:\t2\n");
  const GpuFacts gpu = gpu_facts(paths_);
  EXPECT_EQ(gpu.count, 3);
  EXPECT_EQ(gpu.driver_version, "535.104.05");
  EXPECT_EQ(numa_nodes(paths_), 2);
  EXPECT_TRUE(cma_facts(paths_, false) == (CmaFacts{false, 0, 2, 2}));
  put("/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (x@y)\n");
  EXPECT_EQ(gpu_facts(paths_).driver_version, "570.86.15");
}

}  // namespace
}  // namespace shoal
