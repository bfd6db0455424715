#include "runtime/transport/rungs/rung.h"

#include <algorithm>
#include <cerrno>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/base/page_size.h"
#include "runtime/comm/slots/cma_communicator.h"

namespace shoal {
namespace {

TEST(Rung, DefaultOrderIsFastestFirst) {
  EXPECT_EQ(rung_names(), "shm,memfd,shm-lean,cma,tcp");
  EXPECT_STREQ(find_rung("tcp")->name, "tcp");
  EXPECT_EQ(find_rung("nvlink"), nullptr);
}

TEST(Rung, TheOrderFollowsTheCosts) {
  double large = 1;
  for (const Rung& rung : rungs()) {
    const RungCost beside = cost_beside(rung, *find_rung("shm"));
    ASSERT_TRUE(beside.measured()) << rung.name;
    // cma and tcp move 1 MiB no slower than shm-lean, but short messages much slower.
    EXPECT_GE(std::max(beside.small, beside.large), large) << rung.name;
    large = std::max(beside.small, beside.large);
    EXPECT_EQ(as_good(beside),
              std::string_view(rung.name) == "shm" || std::string_view(rung.name) == "memfd")
        << rung.name;
  }
  EXPECT_TRUE(as_good(cost_beside(*find_rung("shm"), *find_rung("tcp")))) << "it is faster";
  EXPECT_FALSE(as_good(cost_beside(*find_rung("tcp"), *find_rung("cma"))));
  for (const Rung& rung : rungs(DeviceKind::kCuda)) {
    EXPECT_FALSE(as_good(cost_beside(rung, *find_rung("nccl-p2p"))))
        << rung.name << ": nobody has measured it";
  }
}

TEST(Rung, OrdersParse) {
  EXPECT_EQ(*parse_transport_order("shm", DeviceKind::kCpu), std::vector<std::string>({"shm"}));
  EXPECT_EQ(*parse_transport_order("tcp,shm", DeviceKind::kCpu),
            (std::vector<std::string>{"tcp", "shm"}));
  for (const char* bad : {"", "shm,", ",shm", "shm,shm", "SHM", "shm tcp", "rdma", "lean"}) {
    const auto order = parse_transport_order(bad, DeviceKind::kCpu);
    EXPECT_EQ(order.status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(parse_transport_order("rdma", DeviceKind::kCpu).status().to_string().find(rung_names()),
            std::string::npos);
}

TEST(Rung, PrepareReservesAndLeavesNoName) {
  for (const Rung& rung : rungs()) {
    const auto setup = rung.prepare(4);
    ASSERT_TRUE(setup.ok()) << setup.status().to_string();
    EXPECT_EQ(setup->rung, rung.name);
    EXPECT_EQ(setup->listeners.size(), setup->tcp_ports.size());
    EXPECT_EQ(setup->tcp_ports.size(), setup->rung == "tcp" ? 4u : 0u);
    EXPECT_EQ(setup->shm.size() > 0, setup->rung != "tcp");
    struct stat facts {};
    ASSERT_EQ(setup->shm.size() > 0 ? ::fstat(setup->shm.fd(), &facts) : 0, 0);
    EXPECT_EQ(facts.st_nlink, 0u) << rung.name;
  }
}

/// The facts of a machine about which nothing is known, except that its pages have the size of this
/// machine's.
HostFacts facts_with_own_pages() {
  HostFacts facts;
  facts.page_bytes = static_cast<int64_t>(page_size());
  return facts;
}

// The computed need must be what the file system then charges: whole pages and one inode.
TEST(Rung, NeedIsWhatPrepareTakes) {
  for (const Rung& rung : rungs()) {
    for (const int world_size : {1, 2, 3, 7, 8, 16, 17, 64}) {
      const RungContext place(world_size, facts_with_own_pages());
      const ShmNeed need = rung.need(place);
      EXPECT_EQ(need.rung, rung.name);
      const auto setup = rung.prepare(place);
      ASSERT_TRUE(setup.ok()) << setup.status().to_string();
      int64_t private_bytes = 0;
      if (need.rung == "cma")
        private_bytes =
            world_size * static_cast<int64_t>(cma_rank_bytes(world_size, kCmaSlotBytes));
      EXPECT_EQ(need.memory_bytes() - private_bytes, static_cast<int64_t>(setup->shm.size()))
          << rung.name;
      const bool in_dev_shm = need.rung == "shm" || need.rung == "shm-lean";
      EXPECT_EQ(need.dev_shm_bytes(), in_dev_shm ? need.memory_bytes() : 0);
      EXPECT_EQ(need.dev_shm_inodes(), in_dev_shm ? 1 : 0);
      struct stat facts {};
      ASSERT_EQ(setup->shm.size() > 0 ? ::fstat(setup->shm.fd(), &facts) : 0, 0);
      EXPECT_EQ(facts.st_blocks * 512, static_cast<int64_t>(setup->shm.size())) << rung.name;
      for (const auto& list : {need.dev_shm, need.memory}) {
        for (const Consumer& consumer : list) {
          EXPECT_EQ(consumer.bytes % place.facts.page_bytes, 0) << consumer.what;
          EXPECT_NE(consumer.what.find(std::to_string(world_size)), std::string::npos)
              << consumer.what;
        }
      }
    }
  }
  EXPECT_LT(find_rung("shm-lean")->need(8).dev_shm_bytes(), 70'000);
}

TEST(Rung, ConnectionsAreOpenFiles) {
  for (const Rung& rung : rungs())
    EXPECT_EQ(rung.need(8).descriptors, std::string(rung.name) == "tcp" ? 32 : 0);
  HostFacts facts;
  facts.limits.nofile = 31;
  const Status refused = check_budget(find_rung("tcp")->need(8), facts, {});
  EXPECT_NE(refused.to_string().find("32 open files; the limit is 31 (ulimit -n)"),
            std::string::npos)
      << refused.to_string();
}

TEST(Rung, ProbesSayWhatTheFactsForbid) {
  HostFacts facts;
  for (const Rung& rung : rungs()) EXPECT_TRUE(rung.probe({2, facts}).ok()) << rung.name;
  facts.memfd_error = ENOSYS;
  facts.cma = {true, EPERM, 2, 2};
  facts.limits.fsize_bytes = 65536;
  const auto probe = [&](const char* name) { return find_rung(name)->probe({2, facts}); };
  EXPECT_EQ(probe("shm").code(), Code::kResourceExhausted);
  EXPECT_NE(probe("shm").to_string().find("65536 B (64 KiB) (ulimit -f)"), std::string::npos);
  EXPECT_TRUE(probe("shm-lean").ok());
  EXPECT_EQ(probe("memfd").code(), Code::kUnavailable);
  facts.memfd_error = 0;
  EXPECT_EQ(probe("memfd").code(), Code::kResourceExhausted);
  EXPECT_EQ(probe("cma").code(), Code::kPermissionDenied);
  EXPECT_NE(probe("cma").to_string().find("yama_scope is 2, seccomp mode is 2"), std::string::npos);
  facts.cma.tried = false;
  EXPECT_TRUE(probe("cma").ok());
  EXPECT_TRUE(probe("tcp").ok());
  facts.loopback_error = ENETUNREACH;
  EXPECT_EQ(probe("tcp").code(), Code::kUnavailable);
  EXPECT_NE(probe("tcp").to_string().find("127.0.0.1: Network is unreachable"), std::string::npos)
      << probe("tcp").to_string();
}

TEST(Rung, ConsumersHaveMebibytesToo) {
  EXPECT_EQ(find_rung("shm")->need(4).dev_shm.at(0).what,
            "2 slots of 262144 B (256 KiB) and 256 B of control words for each of 4 ranks");
  EXPECT_EQ(find_rung("shm-lean")->need(2).dev_shm.at(0).what,
            "2 slots of 4096 B and 256 B of control words for each of 2 ranks");
  EXPECT_EQ(
      find_rung("cma")->need(3).memory.at(0).what,
      "private memory of 3 ranks: 2 own slots and 2 mirrors of 262144 B (256 KiB), and a page "
      "of control words, each");
}

TEST(Rung, NeedsAreWholePagesOfTheMachine) {
  // arm64 machines may have pages of 64 KiB. The need is what is charged there.
  HostFacts facts;
  facts.page_bytes = 65536;
  for (const Rung& rung : rungs()) {
    for (const int ranks : {2, 3, 8}) {
      const ShmNeed small = rung.need(ranks), large = rung.need({ranks, facts});
      EXPECT_LE(small.memory_bytes(), large.memory_bytes()) << rung.name;
      EXPECT_LT(large.memory_bytes() - small.memory_bytes(), (ranks + 1) * 65536) << rung.name;
      for (const auto& list : {large.dev_shm, large.memory}) {
        for (const Consumer& consumer : list)
          EXPECT_EQ(consumer.bytes % 65536, 0) << rung.name << ": " << consumer.what;
      }
    }
  }
  EXPECT_EQ(find_rung("shm-lean")->need({2, facts}).dev_shm_bytes(), 65536);
  EXPECT_EQ(find_rung("shm-lean")->need(2).dev_shm_bytes(), 20480);
  EXPECT_EQ(find_rung("shm")->need({2, facts}).dev_shm_bytes(), 17 * 65536);
  // A /dev/shm that would do with small pages is refused, and one more page is enough.
  facts.dev_shm.exists = true;
  facts.dev_shm.fs_type = "tmpfs";
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = 17 * 65536 - 4096;
  const ShmNeed need = find_rung("shm")->need({2, facts});
  EXPECT_EQ(check_budget(need, facts, {}).code(), Code::kResourceExhausted);
  facts.dev_shm.size_bytes = facts.dev_shm.free_bytes = 17 * 65536;
  EXPECT_TRUE(check_budget(need, facts, {}).ok());
}

}  // namespace
}  // namespace shoal
