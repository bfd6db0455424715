#include "runtime/transport/remedy.h"

#include <algorithm>
#include <cerrno>
#include <gtest/gtest.h>
#include <limits>

namespace shoal {
namespace {

constexpr int64_t kMiB = 1 << 20;

ShmNeed need_of(const std::string& rung, int64_t dev_shm, int64_t inodes = 1, int64_t memory = 0) {
  ShmNeed need;
  need.rung = rung;
  if (dev_shm > 0) need.dev_shm.push_back({"slots", dev_shm, inodes});
  if (memory > 0) need.memory.push_back({"memfd", memory, 0});
  return need;
}

/// A host with 64 MiB of /dev/shm, of which 1 MiB is used.
HostFacts host(const std::string& container = "") {
  HostFacts facts;
  facts.container = container;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.mount_options = "rw,nosuid,nodev,size=65536k";
  facts.dev_shm.size_bytes = 64 * kMiB;
  facts.dev_shm.free_bytes = 63 * kMiB;
  facts.dev_shm.total_inodes = 1000;
  facts.dev_shm.free_inodes = 998;
  facts.loopback_ipv4 = true;
  return facts;
}

std::vector<Remedy> for_need(const HostFacts& facts, const ShmNeed& need, int64_t headroom = 0,
                             int64_t reserved = 0) {
  const Status status = Status::error(Code::kResourceExhausted, "refused");
  const auto list = remedies(facts, 2, {{need, status, headroom, reserved}});
  for (const Remedy& remedy : list) {
    EXPECT_FALSE(remedy.title.empty());
    EXPECT_EQ(remedy.title.find('\n'), std::string::npos) << remedy.title;
    EXPECT_EQ((remedy.text + "\n").find(" \n"), std::string::npos)
        << "trailing space: " << remedy.text;
    EXPECT_FALSE(remedy.text.ends_with("\n"));
  }
  return list;
}

std::string kinds(const std::vector<Remedy>& list) {
  std::string text;
  for (const Remedy& remedy : list) text += (text.empty() ? "" : " ") + remedy.kind;
  return text;
}

TEST(Remedy, NothingIsWrongNothingIsSaid) {
  EXPECT_TRUE(remedies(host(), 2, {}).empty());
  EXPECT_TRUE(for_need(host(), need_of("shm", 32 * kMiB)).empty());
  // Stale files and a low yama scope are not mentioned if they prevent nothing.
  HostFacts facts = host("docker");
  facts.left_files = {{"/dev/shm/nccl-abcdef", 9641984, 0, LeftFileState::kStale}};
  facts.cma = {true, 0, 1, 2};
  EXPECT_TRUE(for_need(facts, need_of("shm", 32 * kMiB)).empty());
  EXPECT_TRUE(for_need(facts, need_of("cma", 0)).empty());
}

TEST(Remedy, TooSmallOnAPlainHost) {
  const auto list = for_need(host(), need_of("shm", 100 * kMiB), 4096);
  ASSERT_EQ(kinds(list), "mount");
  EXPECT_EQ(list[0].title,
            "/dev/shm is too small for 2 ranks and the 1048576 B (1.0 MiB) in it: remount it with "
            "105910272 B (101.0 MiB), or 128m");
  EXPECT_EQ(list[0].text, "mount -o remount,size=105910272 /dev/shm");  // 1 MiB + 100 MiB + 4096
  HostFacts empty = host();
  empty.dev_shm.free_bytes = empty.dev_shm.size_bytes;
  EXPECT_EQ(for_need(empty, need_of("shm", 100 * kMiB)).at(0).title,
            "/dev/shm is too small for 2 ranks: remount it with 104857600 B (100.0 MiB), or 128m");
}

TEST(Remedy, ALeastNeedIsCalledSo) {
  ShmNeed need = need_of("nccl-shm", 100 * kMiB);
  need.bound = Bound::kAtLeast;
  EXPECT_EQ(for_need(host(), need).at(0).title,
            "/dev/shm is too small for 2 ranks and the 1048576 B (1.0 MiB) in it: remount it with "
            "at least 105906176 B (101.0 MiB), or 128m");
  EXPECT_NE(for_need(host("kubernetes"), need).at(0).title.find("an emptyDir of at least 1059"),
            std::string::npos);
  need.bound = Bound::kAtMost;
  EXPECT_EQ(for_need(host(), need).at(0).title,
            for_need(host(), need_of("shm", 100 * kMiB)).at(0).title);
}

TEST(Remedy, NoMountHasRoomForAnEndlessHeadroom) {
  EXPECT_TRUE(for_need(host(), need_of("shm", kMiB), std::numeric_limits<int64_t>::max()).empty());
}

TEST(Remedy, TooSmallInAUserNamespace) {
  HostFacts facts = host();
  facts.dev_shm.mount_options = "rw,nosuid,nodev,relatime,rw,size=65536k,uid=1000,gid=1000";
  EXPECT_EQ(for_need(facts, need_of("shm", 100 * kMiB)).at(0).text,
            "mount --options-mode ignore -o remount,nosuid,nodev,size=105906176 /dev/shm");
}

TEST(Remedy, TooSmallInDocker) {
  const auto list = for_need(host("docker"), need_of("shm", 100 * kMiB));
  ASSERT_EQ(kinds(list), "docker");
  EXPECT_EQ(list[0].title,
            "/dev/shm is too small for 2 ranks and the 1048576 B (1.0 MiB) in it: start the "
            "container with 105906176 B (101.0 MiB), or 128m");
  EXPECT_EQ(list[0].text,
            "docker run --shm-size=105906176b ...\n"
            "# in compose.yaml, under the service:\n"
            "shm_size: \"105906176b\"");
  EXPECT_TRUE(for_need(host("podman"), need_of("shm", 100 * kMiB))[0].text.starts_with(
      "podman run --shm-size="));
  const auto containerd = for_need(host("containerd"), need_of("shm", 100 * kMiB));
  EXPECT_EQ(kinds(containerd), "docker kubernetes");
  EXPECT_TRUE(containerd[0].text.starts_with("nerdctl run --shm-size="));
}

TEST(Remedy, TooSmallInKubernetes) {
  const auto list = for_need(host("kubernetes"), need_of("shm", 100 * kMiB));
  ASSERT_EQ(kinds(list), "kubernetes");
  EXPECT_EQ(list[0].title,
            "/dev/shm is too small for 2 ranks and the 1048576 B (1.0 MiB) in it: mount an "
            "emptyDir of 105906176 B (101.0 MiB), or 128Mi there");
  EXPECT_EQ(
      list[0].text,
      "spec:\n"
      "  containers:\n"
      "    - name: shoal\n"
      "      volumeMounts:\n"
      "        - name: dshm\n"
      "          mountPath: /dev/shm\n"
      "  volumes:\n"
      "    - name: dshm\n"
      "      emptyDir:\n"
      "        medium: Memory\n"
      "        sizeLimit: \"105906176\"  # bytes, or 128Mi; its pages count against resources.limits.memory");
}

TEST(Remedy, SizesAreWholePagesAndForTheLargestNeed) {
  HostFacts facts = host();
  facts.page_bytes = 65536;
  const Status status = Status::error(Code::kResourceExhausted, "refused");
  const auto list = remedies(facts, 2,
                             {{need_of("shm-lean", 64 * kMiB), status, 0, 0},
                              {need_of("shm", 100 * kMiB + 4096), status, 0, 0}});
  ASSERT_EQ(kinds(list), "mount");
  EXPECT_EQ(list[0].text, cat("mount -o remount,size=", 101 * kMiB + 65536, " /dev/shm"));
}

TEST(Remedy, AFailedProbeCountsMoreThanStatvfs) {
  HostFacts facts = host();
  facts.dev_shm.probed_bytes = 32 * kMiB;
  facts.dev_shm.probe_errno = ENOSPC;
  const auto list = for_need(facts, need_of("shm", 32 * kMiB));
  ASSERT_EQ(kinds(list), "mount");
  EXPECT_EQ(list[0].text, cat("mount -o remount,size=", 96 * kMiB, " /dev/shm"));
}

TEST(Remedy, MissingOrNoTmpfs) {
  HostFacts facts = host();
  facts.dev_shm = {};
  const std::string mount =
      cat("mkdir -p /dev/shm && mount -t tmpfs -o size=", 100 * kMiB, ",mode=1777 tmpfs /dev/shm");
  const ShmNeed need = need_of("shm", 100 * kMiB);
  EXPECT_EQ(for_need(facts, need).at(0).text, mount);
  EXPECT_EQ(
      for_need(facts, need).at(0).title,
      "/dev/shm is missing, and is needed for 2 ranks: mount a tmpfs of 104857600 B (100.0 MiB), or "
      "128m there");
  facts.dev_shm.occupied = true;
  EXPECT_EQ(for_need(facts, need).at(0).text, "rm /dev/shm && " + mount);
  EXPECT_TRUE(for_need(facts, need)
                  .at(0)
                  .title.starts_with("/dev/shm is no directory, and is needed for 2 ranks: "));
  facts.dev_shm.occupied = false;
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "overlay";
  EXPECT_EQ(for_need(facts, need).at(0).text, mount);
  facts.container = "docker";
  const auto list = for_need(facts, need);
  ASSERT_EQ(kinds(list), "docker");
  EXPECT_EQ(list[0].title,
            "/dev/shm is no tmpfs, and is needed for 2 ranks: start the container with a /dev/shm "
            "of its own, of 104857600 B (100.0 MiB), or 128m");
  EXPECT_TRUE(list[0].text.starts_with("docker run --ipc=private --shm-size=104857600b ...\n"));
}

TEST(Remedy, ReadOnlyOrForbidden) {
  HostFacts facts = host();
  facts.dev_shm.open_errno = EROFS;
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).text, "mount -o remount,rw /dev/shm");
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).title,
            "/dev/shm is read-only, and is needed for 2 ranks: remount it");
  EXPECT_EQ(for_need(facts, need_of("shm", 100 * kMiB)).at(0).text,
            "mount -o remount,rw,size=105906176 /dev/shm");
  facts.dev_shm.open_errno = EACCES;
  facts.dev_shm.mount_options = "ro,nosuid";
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).text, "mount -o remount,rw /dev/shm");
  facts.dev_shm.mount_options = "rw,errors=remount-ro";
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).text, "chmod 1777 /dev/shm");
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).title,
            "/dev/shm may not be written, and is needed for 2 ranks: open it to all users");
  EXPECT_TRUE(for_need(facts, need_of("shm", 100 * kMiB))
                  .at(0)
                  .title.starts_with("/dev/shm is too small for 2 ranks and the 1048576 B (1.0 "
                                     "MiB) in it: remount it with "));
  facts.container = "kubernetes";
  EXPECT_EQ(kinds(for_need(facts, need_of("shm", kMiB))), "kubernetes");
}

TEST(Remedy, TooFewInodes) {
  HostFacts facts = host();
  facts.dev_shm.free_inodes = 3;
  const ShmNeed need = need_of("nccl", kMiB, 8);
  EXPECT_EQ(for_need(facts, need).at(0).text, "mount -o remount,nr_inodes=1005 /dev/shm");
  EXPECT_EQ(for_need(facts, need).at(0).title,
            "/dev/shm has too few inodes for 2 ranks: remount it with 1005 inodes");
  const ShmNeed both = need_of("nccl", 100 * kMiB, 8);
  EXPECT_EQ(for_need(facts, both).at(0).text,
            "mount -o remount,size=105906176,nr_inodes=1005 /dev/shm");
  EXPECT_TRUE(for_need(facts, both).at(0).title.ends_with(", or 128m, and 1005 inodes"));
  facts.container = "docker";
  EXPECT_EQ(
      for_need(facts, both).at(0).text,
      "docker run --tmpfs /dev/shm:rw,nosuid,nodev,noexec,mode=1777,size=105906176,nr_inodes=1005 ...");
}

TEST(Remedy, FileSizeLimit) {
  HostFacts facts = host();
  facts.limits.fsize_bytes = 4096;
  EXPECT_EQ(for_need(facts, need_of("shm", kMiB)).at(0).text, "ulimit -f unlimited");
  facts.container = "docker";
  EXPECT_EQ(kinds(for_need(facts, need_of("shm", kMiB))), "docker ulimit");
  // The largest file counts, without the headroom. A memfd is a file too.
  facts = host();
  facts.limits.fsize_bytes = 2 * kMiB;
  EXPECT_TRUE(for_need(facts, need_of("nccl-shm", 8 * kMiB, 4), kMiB).empty());
  facts.limits.fsize_bytes -= 1;
  EXPECT_EQ(
      for_need(facts, need_of("nccl-shm", 8 * kMiB, 4), kMiB).at(0).title,
      "a file may have 2097151 B (2.0 MiB) and needs 2097152 B (2.0 MiB) for 2 ranks: lift the "
      "limit");
  EXPECT_EQ(kinds(for_need(facts, {"memfd", {}, {{"slots", 2 * kMiB, 1}}})), "ulimit");
}

TEST(Remedy, TooFewOpenFiles) {
  HostFacts facts = host();
  const ShmNeed need{"tcp", {}, {}, 30};
  facts.limits.nofile = 30;
  EXPECT_TRUE(for_need(facts, need).empty());
  facts.limits.nofile = 29;
  const auto list = for_need(facts, need);
  ASSERT_EQ(kinds(list), "ulimit");
  EXPECT_EQ(list[0].title,
            "a process may have 29 open files and needs 30 for 2 ranks: raise the limit");
  EXPECT_EQ(list[0].text, "ulimit -n 1024");
  facts.container = "podman";
  EXPECT_EQ(for_need(facts, need).at(0).text, "podman run --ulimit nofile=1024:1024 ...");
}

TEST(Remedy, StaleFilesComeFirstWhereTheyAreEnough) {
  HostFacts facts = host("docker");
  facts.left_files = {{"/dev/shm/nccl-aaaaaa", 34213888, 0, LeftFileState::kStale},
                      {"/dev/shm/nccl-bbbbbb", 34213888, 0, LeftFileState::kInUse},
                      {"/dev/shm/nccl-cccccc", 34213888, 9, LeftFileState::kOtherUser}};
  auto list = for_need(facts, need_of("shm", 90 * kMiB));
  ASSERT_EQ(kinds(list), "other docker");
  EXPECT_EQ(list[0].text, "shoal doctor --clean-stale");
  EXPECT_EQ(list[0].title,
            "killed runs left 34213888 B (32.6 MiB) in /dev/shm (files: 1): remove them, which is "
            "enough for 2 ranks");
  facts.can_mount = true;
  list = for_need(facts, need_of("shm", 100 * kMiB));
  ASSERT_EQ(kinds(list), "docker mount other");
  // They are not there in a new container, but stay in one that is remounted.
  EXPECT_EQ(list[0].title,
            "/dev/shm is too small for 2 ranks: start the container with 104857600 B (100.0 MiB), "
            "or 128m");
  EXPECT_EQ(list[1].text, "mount -o remount,size=105906176 /dev/shm");
}

TEST(Remedy, CgroupLimits) {
  HostFacts facts = host("docker");
  facts.cgroup.version = 2;
  facts.cgroup.levels = {{"/", 512 * kMiB, 500 * kMiB, 12 * kMiB}};  // 24 MiB are left
  const ShmNeed need = need_of("memfd", 0, 0, 32 * kMiB);
  auto list = for_need(facts, need, 0, 100 * kMiB);
  ASSERT_EQ(kinds(list), "docker");
  EXPECT_EQ(list[0].text, cat("docker run --memory=", 620 * kMiB, "b ..."));
  EXPECT_EQ(list[0].title, cat("the memory limit of ", 512 * kMiB, " B (512.0 MiB) is ", 108 * kMiB,
                               " B (108.0 MiB) too low for 2 ranks: raise it to "
                               "650117120 B (620.0 MiB), or 1g"));
  facts.container = "kubernetes";
  list = for_need(facts, need, 0, 100 * kMiB);
  ASSERT_EQ(kinds(list), "kubernetes");
  EXPECT_TRUE(list[0].title.ends_with("raise it to 650117120 B (620.0 MiB), or 1Gi"));
  EXPECT_EQ(
      list[0].text,
      "spec:\n  containers:\n    - name: shoal\n      resources:\n        limits:\n          memory: "
      "\"650117120\"  # bytes, or 1Gi");
  facts.container = "";
  facts.cgroup.levels = {
      {"/user.slice/a", -1, 0, 0}, {"/user.slice", 16 * kMiB, 0, 0}, {"/", -1, 0, 0}};
  EXPECT_EQ(for_need(facts, need).at(0).text,
            cat("echo ", 32 * kMiB, " > /sys/fs/cgroup/user.slice/memory.max"));
  // memory.high is no setting of container runtimes, and the kernel takes either limit.
  CgroupLevel& slice = facts.cgroup.levels[1];
  slice.limit_bytes = 64 * kMiB;
  slice.high_bytes = 16 * kMiB;
  list = for_need(facts, need);
  ASSERT_EQ(kinds(list), "cgroup");
  EXPECT_EQ(list[0].text, cat("echo ", 32 * kMiB, " > /sys/fs/cgroup/user.slice/memory.high"));
  EXPECT_EQ(list[0].title.find(
                "the memory limit (memory.high) of 16777216 B (16.0 MiB) is 16777216 B (16.0 "
                "MiB) too"),
            0u)
      << list[0].title;
  slice.limit_bytes = 20 * kMiB;
  EXPECT_EQ(for_need(facts, need).at(0).text,
            cat("echo ", 32 * kMiB, " > /sys/fs/cgroup/user.slice/memory.max && echo ", 32 * kMiB,
                " > /sys/fs/cgroup/user.slice/memory.high"));
  slice = {"/user.slice", 16 * kMiB, 0, 0};
  facts.cgroup.version = 1;
  EXPECT_EQ(for_need(facts, need).at(0).text,
            cat("echo ", 32 * kMiB, " > /sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes"));
}

TEST(Remedy, ARaisedCgroupLimitIsExact) {
  HostFacts facts = host();
  facts.cgroup.version = 2;
  facts.cgroup.levels = {{"/a", 10 * kMiB, 9 * kMiB, kMiB / 2}};
  const ShmNeed need = need_of("shm", 4 * kMiB);
  const BudgetOptions options{0, 3 * kMiB};
  ASSERT_FALSE(check_budget(need, facts, options).ok());
  const std::string text = for_need(facts, need, 0, 3 * kMiB).at(0).text;
  facts.cgroup.levels[0].limit_bytes = std::stoll(text.substr(5));
  EXPECT_TRUE(check_budget(need, facts, options).ok());
  facts.cgroup.levels[0].limit_bytes -= 4096;
  EXPECT_FALSE(check_budget(need, facts, options).ok());
}

TEST(Remedy, TheCgroupComesBeforeTheMountAndTheHostAfterTheContainer) {
  HostFacts facts = host("docker");
  facts.cgroup.version = 2;
  facts.cgroup.levels = {{"/docker/x", 64 * kMiB, 0, 0}, {"/docker", 32 * kMiB, 0, 0}};
  const auto list = for_need(facts, need_of("shm", 100 * kMiB));
  EXPECT_EQ(kinds(list), "docker cgroup docker");
  EXPECT_NE(list[0].text.find("--memory="), std::string::npos);
  EXPECT_NE(list[2].text.find("--shm-size="), std::string::npos);
}

TEST(Remedy, ReadingASiblingsMemory) {
  const auto texts = [](const std::string& container, CmaFacts cma,
                        const std::string& rung = "cma") {
    HostFacts facts = host(container);
    facts.cma = cma;
    std::string all;
    for (const Remedy& remedy : for_need(facts, need_of(rung, 0))) all += remedy.text + "|";
    return all;
  };
  EXPECT_EQ(texts("", {true, EPERM, 1, 0}), "sysctl -w kernel.yama.ptrace_scope=0|");
  EXPECT_EQ(texts("", {true, EPERM, 2, 0}), "sysctl -w kernel.yama.ptrace_scope=1|");
  EXPECT_EQ(texts("", {true, EPERM, 3, 0}),
            "echo kernel.yama.ptrace_scope=1 > /etc/sysctl.d/99-shoal.conf|");
  EXPECT_EQ(texts("docker", {true, EPERM, 0, 2}), "docker run --cap-add=SYS_PTRACE ...|");
  EXPECT_EQ(texts("docker", {true, EPERM, 1, 2}),
            "docker run --cap-add=SYS_PTRACE ...|sysctl -w kernel.yama.ptrace_scope=0|");
  EXPECT_EQ(texts("", {true, ENOSYS, 1, 2}), "SystemCallFilter=process_vm_readv|");
  EXPECT_EQ(texts("", {true, EPERM, 1, 2}),
            "sysctl -w kernel.yama.ptrace_scope=0|SystemCallFilter=process_vm_readv|");
  EXPECT_NE(texts("kubernetes", {true, EPERM, -1, 2}).find("add: [\"SYS_PTRACE\"]"),
            std::string::npos);
  EXPECT_EQ(texts("", {true, EPERM, 1, 0}, "shm"), "") << "another rung was refused";
  EXPECT_EQ(texts("", {true, EFAULT, 1, 0}), "");
}

TEST(Remedy, MemfdAndLoopback) {
  HostFacts facts = host("docker");
  facts.memfd_error = EPERM;
  EXPECT_EQ(for_need(facts, need_of("memfd", 0, 0, kMiB)).at(0).text,
            "docker run --security-opt seccomp=unconfined ...");
  EXPECT_TRUE(for_need(facts, need_of("tcp", 0)).empty());
  facts.loopback_error = ENETUNREACH;
  EXPECT_EQ(for_need(facts, need_of("tcp", 0)).at(0).text, "ip link set lo up");
}

}  // namespace
}  // namespace shoal
