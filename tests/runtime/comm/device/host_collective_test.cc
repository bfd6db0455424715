// Collectives on a device's memory that need no other device: those of a group of one, and those
// over a communicator for host memory.
#include "runtime/comm/device/host_collective.h"

#include <array>
#include <gtest/gtest.h>
#include <vector>

#include "runtime/comm/single_communicator.h"
#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

int copies = 0;
int pinned = 0;

/// The stand-in's table, in which copies and allocations of pinned memory are counted.
const ShoalCudaModule& counting_module() {
  static const ShoalCudaModule* const real = [] {
    const Result<const ShoalCudaModule*> loaded = load_cuda_module(SHOAL_EMULATED_MODULE);
    if (!loaded.ok()) ADD_FAILURE() << loaded.status().to_string();
    return *loaded;
  }();
  static const ShoalCudaModule counting = [] {
    ShoalCudaModule table = *real;
    table.copy = [](void* to, const void* from, size_t bytes, void* stream) {
      return ++copies, real->copy(to, from, bytes, stream);
    };
    table.allocate_pinned = [](size_t bytes, void** memory) {
      return ++pinned, real->allocate_pinned(bytes, memory);
    };
    return table;
  }();
  return counting;
}

constexpr size_t kCount = 3;
using Values = std::array<float, kCount>;

class CollectivesOfOne : public testing::Test {
 protected:
  /// Sums the values from `own` into `out`, both in pinned memory, and waits for it.
  Status sum(DeviceCollective& collective, float* own, float* out) {
    own[0] = 1, own[1] = -2, own[2] = 3;
    copies = 0;
    SHOAL_RETURN_IF_ERROR(collective.enqueue_all_reduce(plan_, own, out, kCount, stream_.get(),
                                                        Deadline::infinite()));
    enqueued_ = copies;
    SHOAL_RETURN_IF_ERROR(device_->record(done_.get(), stream_.get()));
    SHOAL_RETURN_IF_ERROR(device_->wait(done_.get(), Deadline::infinite(), {}));
    return collective.check();
  }
  static Values values(const float* from) { return {from[0], from[1], from[2]}; }

  const std::shared_ptr<Device> device_ = *Device::open(counting_module(), 0);
  const Device::Stream stream_ = *device_->make_stream();
  const Device::Event done_ = *device_->make_event();
  const Device::Memory memory_ = *device_->allocate_pinned(2 * kCount * sizeof(float));
  float* const own_ = static_cast<float*>(memory_.get());
  ReducePlan plan_ = make_reduce_plan(8, 8, 1);
  int enqueued_ = 0;
};

TEST_F(CollectivesOfOne, TheOneContributionIsTheSumAndStaysWhereItIs) {
  const auto collective = make_single_collective(device_);
  EXPECT_EQ(collective->world().size, 1);
  EXPECT_TRUE(wait_state_in(*collective, 1, "a sum").waits_for.empty());
  ASSERT_TRUE(sum(*collective, own_, own_ + kCount).ok());
  EXPECT_EQ(values(own_ + kCount), (Values{1, -2, 3}));
  ASSERT_TRUE(sum(*collective, own_, own_).ok());
  EXPECT_EQ(values(own_), (Values{1, -2, 3}));
  EXPECT_EQ(enqueued_, 0);
}

TEST_F(CollectivesOfOne, APlanOfAnotherGroupIsRefused) {
  const auto collective = make_single_collective(device_);
  plan_ = make_reduce_plan(8, 8, 2);
  EXPECT_EQ(sum(*collective, own_, own_ + kCount).code(), Code::kInvalidArgument);
  plan_ = make_reduce_plan(2, 2, 1);
  plan_.contributions = {2};
  plan_.finish.merges = {0, 1};
  EXPECT_EQ(sum(*collective, own_, own_ + kCount).code(), Code::kInvalidArgument);
}

TEST_F(CollectivesOfOne, OverACommunicatorForHostMemoryTheValuesTravelThroughTheHost) {
  const std::shared_ptr<Communicator> host = make_single_communicator();
  const auto collective = open_host_collective(host, device_, {});
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();
  ASSERT_TRUE(sum(**collective, own_, own_ + kCount).ok());
  EXPECT_EQ(values(own_ + kCount), (Values{1, -2, 3}));
  EXPECT_EQ(enqueued_, 2) << "to the host and back";
}

TEST_F(CollectivesOfOne, BuffersAreKeptForSumsThatAreNotLarger) {
  const std::shared_ptr<Communicator> host = make_single_communicator();
  const auto collective = open_host_collective(host, device_, {});
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();
  pinned = 0;
  ASSERT_TRUE(sum(**collective, own_, own_ + kCount).ok());
  EXPECT_EQ(pinned, 2) << "what comes from the device and what goes back";
  // The copy that a sum has enqueued may still read its buffer when the next sum begins.
  ASSERT_TRUE(sum(**collective, own_, own_ + kCount).ok());
  EXPECT_EQ(pinned, 2);
}

}  // namespace
}  // namespace shoal
