#include <cerrno>
#include <gtest/gtest.h>

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
    EXPECT_EQ(list[0].title, "the container has no GPU, and 2 ranks need 2 GPUs: give it GPUs");
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

}  // namespace
}  // namespace shoal
