// The staging by itself, over a collective that does as the test says.
#include "runtime/comm/device/staged_communicator.h"

#include <gtest/gtest.h>

#include "runtime/comm/device/device_collective.h"
#include "runtime/device/module_loader.h"
#include "tests/moved_clock.h"

namespace shoal {
namespace {

int polls = 0;

/// The stand-in's table with streams that never run dry; how often one was asked is counted.
const ShoalCudaModule& endless_module() {
  static const ShoalCudaModule endless = [] {
    const Result<const ShoalCudaModule*> loaded = load_cuda_module(SHOAL_EMULATED_MODULE);
    if (!loaded.ok()) ADD_FAILURE() << loaded.status().to_string();
    ShoalCudaModule table = **loaded;
    table.query_event = [](void*, int32_t* done) { return ++polls, *done = 0; };
    return table;
  }();
  return endless;
}

/// Rank 0 of two, which takes in the call as long as a collective may.
class SlowCollective final : public DeviceCollective {
 public:
  const char* name() const override { return "slow"; }
  World world() const override { return {0, 2}; }
  Status enqueue_all_reduce(const ReducePlan&, const float*, float*, size_t, void*,
                            Deadline until) override {
    return sit_out(until);
  }
  Status enqueue_all_gather(const void*, void*, size_t, void*, Deadline until) override {
    return sit_out(until);
  }
  Status check() override { return {}; }

 private:
  static Status sit_out(Deadline until) {
    MovedClock::advance(until.seconds_left());
    return {};
  }
};

// A call that waits for peers and the wait for the stream share one timeout.
TEST(StagedCommunicatorTest, ACollectiveHasOneDeadline) {
  const std::shared_ptr<Device> device = *Device::open(endless_module(), 0);
  const MovedClock clock;
  const ReducePlan plan = make_reduce_plan(2, 2, 2);
  const float own[] = {1};
  float out[1];
  for (const bool sum : {false, true}) {
    auto communicator =
        make_staged_communicator(device, std::make_unique<SlowCollective>(), 500, {});
    ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
    polls = 0;
    const Status status =
        sum ? (*communicator)->all_reduce(plan, own, out, 1) : (*communicator)->barrier();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
    EXPECT_LT(polls, 2'500) << "it went on for another timeout";
    EXPECT_EQ((*communicator)->wait_state().waits_for, std::vector<int>{1});
  }
}

}  // namespace
}  // namespace shoal
