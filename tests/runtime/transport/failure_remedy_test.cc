#include <cerrno>
#include <gtest/gtest.h>
#include <tuple>

#include "runtime/transport/remedy.h"

namespace shoal {
namespace {

TEST(FailureRemedy, RaisesTheLimitOfOpenFiles) {
  HostFacts facts;
  facts.limits.nofile = 16;
  const Status failure = Status::error(Code::kResourceExhausted, "duplicate a descriptor", EMFILE)
                             .while_doing("start the ranks");
  ASSERT_EQ(remedies_of_failure(facts, 3, failure).size(), 1u);
  EXPECT_EQ(remedies_of_failure(facts, 3, failure)[0].text, "ulimit -n 1024");
  EXPECT_TRUE(remedies_of_failure(facts, 3, failure)[0].title.ends_with(
      ", which is too few for 3 ranks: raise the limit"));
  facts.limits.nofile = 1024;
  EXPECT_EQ(remedies_of_failure(facts, 3, failure)[0].text, "ulimit -n 2048");
  EXPECT_TRUE(
      remedies_of_failure(facts, 3, Status::error(Code::kAborted, "rank 1 was killed")).empty());
  EXPECT_TRUE(remedies_of_failure(facts, 3, {}).empty());
}

TEST(FailureRemedy, GivesAContainerItsGpus) {
  HostFacts facts;
  facts.gpu.asked = true;
  facts.gpu.error_at = GpuErrorAt::kFacts;
  facts.gpu.cuda_runtime = 13000;
  const Status failure = Status::error(Code::kFailedPrecondition, "no NVIDIA driver is here");
  EXPECT_TRUE(remedies_of_failure(facts, 2, failure).empty()) << "it is no container";
  for (const auto& [container, command] :
       {std::pair{"docker", "docker run --gpus all ..."},
        {"containerd", "nerdctl run --gpus all ..."},
        {"podman", "podman run --device nvidia.com/gpu=all ..."}}) {
    facts.container = container;
    const auto list = remedies_of_failure(facts, 2, failure);
    ASSERT_EQ(list.size(), 1u) << container;
    EXPECT_EQ(list[0].kind, "docker");
    EXPECT_EQ(
        list[0].title,
        "the container has no GPU, and 2 ranks need 2 GPUs: give it GPUs, once the host has driver "
        "580.65.06 or newer and NVIDIA's container toolkit");
    EXPECT_EQ(list[0].text, command);
  }
  facts.container = "kubernetes";
  facts.gpu.ranks_per_gpu = 2;
  const auto list = remedies_of_failure(facts, 3, failure);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].kind, "kubernetes");
  EXPECT_TRUE(list[0].text.ends_with("\n        limits:\n          nvidia.com/gpu: 2"))
      << list[0].text;
  EXPECT_TRUE(remedies_of_failure(facts, 3, Status::error(Code::kAborted, "a rank died")).empty());
  facts.gpu.cuda_driver = 13000;
  EXPECT_TRUE(
      remedies_of_failure(facts, 3, failure).at(0).title.starts_with("the container has no"));
  facts.gpu.driver_version = "580.65.06";
  EXPECT_TRUE(remedies_of_failure(facts, 3, failure).empty()) << "its driver is what fails";
}

TEST(OptionalRemedy, SaysWhatDevShmWouldHaveToBe) {
  HostFacts facts;
  ShmDirFacts& dir = facts.dev_shm;
  dir.exists = true;
  dir.size_bytes = 1 << 20;
  dir.free_bytes = dir.size_bytes - 4096;
  dir.total_inodes = 2;
  const auto title = [&facts](int64_t bytes, int64_t files = 1) {
    ShmNeed need;
    need.rung = "shm";
    need.dev_shm.push_back({"slots", bytes, files});
    const auto list = remedies(facts, 2, {{need, {}, 0, 0}});
    const std::string text = list.empty() ? "" : list[0].optional_title;
    return text.substr(0, text.find(": "));
  };
  dir.free_inodes = 1;
  EXPECT_EQ(title(2 << 20), "with the 4096 B in it, /dev/shm would have to be larger");
  EXPECT_EQ(title(4096, 2), "/dev/shm would have to have more inodes");
  for (const int error : {EROFS, EACCES}) {
    dir.open_errno = error;
    EXPECT_EQ(title(4096), "/dev/shm would have to be writable");
  }
  dir.exists = false;
  EXPECT_EQ(title(4096), "/dev/shm would have to be a tmpfs");
}

/// The remedies for one need of this many bytes, on a host with 64 MiB of /dev/shm.
struct InSixtyFourMebibytes {
  HostFacts facts;

  explicit InSixtyFourMebibytes(const std::string& container) {
    facts.container = container;
    facts.dev_shm.exists = true;
    facts.dev_shm.fs_type = "tmpfs";
    facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = 64 << 20;
    facts.dev_shm.total_inodes = facts.dev_shm.free_inodes = 1000;
  }

  std::vector<Remedy> list(int64_t bytes, int64_t files = 1) const {
    ShmNeed need;
    need.rung = "shm";
    need.dev_shm.push_back({"slots", bytes, files});
    return remedies(facts, 2, {{need, {}, 0, 0}});
  }
};

TEST(RemedyForANewMount, IsNeverSmallerThanThisOne) {
  for (const int error : {EROFS, EACCES}) {
    InSixtyFourMebibytes docker("docker"), kubernetes("kubernetes");
    docker.facts.dev_shm.open_errno = kubernetes.facts.dev_shm.open_errno = error;
    Remedy remedy = docker.list(1 << 20).at(0);
    EXPECT_TRUE(remedy.title.ends_with(": start the container with a /dev/shm of its own"))
        << remedy.title;
    EXPECT_EQ(remedy.text,
              "docker run --ipc=private --shm-size=67108864b ...\n"
              "# in compose.yaml, under the service:\n"
              "ipc: private\n"
              "shm_size: \"67108864b\"\n"
              "# and without a volume on /dev/shm");
    remedy = kubernetes.list(1 << 20).at(0);
    EXPECT_TRUE(remedy.title.ends_with(": mount an emptyDir there")) << remedy.title;
    EXPECT_NE(remedy.text.find("sizeLimit: \"67108864\""), std::string::npos) << remedy.text;
  }
  InSixtyFourMebibytes few("docker");
  few.facts.dev_shm.free_inodes = 3;
  const std::string text = few.list(1 << 20, 8).at(0).text;
  EXPECT_NE(text.find(",size=67108864,"), std::string::npos) << text;
}

TEST(RemedyForANewMount, IsTheSameSizeWhereOnlyKilledRunsTakeTheRoom) {
  for (const auto& [container, begin, size] :
       {std::tuple{"docker", "a new container", "--shm-size=67108864b ...\n"},
        {"kubernetes", "a new pod", "sizeLimit: \"67108864\""}}) {
    InSixtyFourMebibytes full(container);
    full.facts.dev_shm.free_bytes = 4 << 20;
    full.facts.left_files = {{"/dev/shm/nccl-aaaaaa", 60 << 20, 0, LeftFileState::kStale}};
    const std::vector<Remedy> list = full.list(8 << 20);
    ASSERT_EQ(list.size(), 2u);
    EXPECT_EQ(list[1].title, cat(begin,
                                 " has an empty /dev/shm, whose 67108864 B (64.0 MiB) are enough "
                                 "for 2 ranks"));
    EXPECT_EQ(list[1].optional_title, list[1].title);
    EXPECT_NE(list[1].text.find(size), std::string::npos) << list[1].text;
  }
}

}  // namespace
}  // namespace shoal
