#include "runtime/transport/rung.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Rung, DefaultOrderIsFastestFirst) {
  EXPECT_EQ(rung_names(), "shm,tcp");
  EXPECT_STREQ(find_rung("tcp")->name, "tcp");
  EXPECT_EQ(find_rung("nvlink"), nullptr);
}

TEST(Rung, OrdersParse) {
  EXPECT_EQ(*parse_transport_order("shm"), std::vector<std::string>({"shm"}));
  EXPECT_EQ(*parse_transport_order("tcp,shm"), (std::vector<std::string>{"tcp", "shm"}));
  for (const char* bad : {"", "shm,", ",shm", "shm,shm", "SHM", "shm tcp", "rdma"}) {
    const auto order = parse_transport_order(bad);
    EXPECT_EQ(order.status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_NE(parse_transport_order("rdma").status().to_string().find("shm,tcp"), std::string::npos);
}

TEST(Rung, PrepareReservesAndLeavesNoName) {
  for (const Rung& rung : rungs()) {
    const auto setup = rung.prepare(4, HostFacts());
    ASSERT_TRUE(setup.ok()) << setup.status().to_string();
    EXPECT_EQ(setup->rung, rung.name);
    EXPECT_EQ(setup->listeners.size(), setup->tcp_ports.size());
    EXPECT_EQ(setup->tcp_ports.size(), setup->rung == "tcp" ? 4u : 0u);
    EXPECT_EQ(setup->shm.size() > 0, setup->rung == "shm");
  }
}

}  // namespace
}  // namespace shoal
