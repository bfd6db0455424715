// The priorities that clients send with Generate.

#include <chrono>
#include <future>

#include "tests/server/grpc/grpc_fixture.h"

namespace shoal {
namespace {

using GrpcPriority = GrpcFixture;

TEST_F(GrpcPriority, TheHigherPriorityOnTheWireGoesFirst) {
  start({.max_num_seqs = 1, .policy = SchedulingPolicy::kPriority});
  workers_.hold();
  const auto send = [this](const char* priority, int waiting) {
    auto sent = std::async(std::launch::async, [this, priority] {
      grpc::ClientContext context;
      context.AddMetadata("openengine-priority", priority);
      return generate(&context, text_request("a", 1)).status;
    });
    EXPECT_TRUE(
        eventually([&] { return loop_->load().running == 1 && loop_->load().waiting == waiting; }));
    return sent;
  };
  auto running = send("0", 0);
  auto low = send("-1", 1);
  auto high = send("1", 2);
  workers_.allow_one_step();
  EXPECT_TRUE(running.get().ok());
  workers_.allow_one_step();  // ends one of the two that wait, and the other is held
  const auto ended = [](const std::future<grpc::Status>& sent) {
    return sent.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(eventually([&] { return ended(low) || ended(high); }));
  EXPECT_TRUE(ended(high));
  workers_.release();
  EXPECT_TRUE(low.get().ok());
  EXPECT_TRUE(high.get().ok());
}

}  // namespace
}  // namespace shoal
