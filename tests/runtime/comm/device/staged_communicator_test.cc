// The staging by itself, over a collective that does as the test says.
#include "runtime/comm/device/staged_communicator.h"

#include <gtest/gtest.h>
#include <vector>

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

/// Counts what goes over it.
class CountingHost final : public Communicator {
 public:
  const char* name() const override { return "slow"; }
  World world() const override { return {0, 2}; }
  Status all_reduce(const ReducePlan&, const float*, float*, size_t) override {
    return Status::error(Code::kInternal, "the sum has left the device");
  }
  Status gather(int, std::span<const std::byte>, std::span<const size_t>, std::byte*) override {
    return ++gathers, Status();
  }
  Status barrier() override { return ++barriers, Status(); }
  WaitState wait_state() const override { return {7, "a gather over the host", {}}; }

  int gathers = 0, barriers = 0;
};

// tcp's: what lies on the host need not go through the device.
TEST(StagedCommunicatorTest, OnlySumsGoOverTheDeviceIfTheHostHasACommunicator) {
  const std::shared_ptr<Device> device = *Device::open(endless_module(), 0);
  const MovedClock clock;
  const auto host = std::make_shared<CountingHost>();
  auto communicator =
      make_staged_communicator(device, std::make_unique<SlowCollective>(), 500, {}, host);
  ASSERT_TRUE(communicator.ok()) << communicator.status().to_string();
  const std::vector<size_t> sizes = {1, 1};
  std::byte bytes[2] = {};
  EXPECT_TRUE((*communicator)->gather(0, {bytes, 1}, sizes, bytes).ok());
  EXPECT_TRUE((*communicator)->barrier().ok());
  EXPECT_EQ(host->gathers, 1);
  EXPECT_EQ(host->barriers, 1);
  EXPECT_EQ((*communicator)->wait_state().collective, 7u);

  const float own[] = {1};
  float out[1];
  const Status status = (*communicator)->all_reduce(make_reduce_plan(2, 2, 2), own, out, 1);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  EXPECT_EQ((*communicator)->wait_state().what, "all_reduce of 1 floats");
  EXPECT_EQ((*communicator)->wait_state().waits_for, std::vector<int>{1});
}

}  // namespace
}  // namespace shoal
