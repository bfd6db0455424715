// How the collective over peer memory uses the module. The table is the stand-in's, with some
// functions watched.
#include "runtime/comm/device/cuda_ipc_collective.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/module_loader.h"

namespace shoal {
namespace {

int freed = 0;
uint64_t spin_ns = 0;                 // of the last push
std::vector<uint16_t> marks;          // of all pushes
std::vector<std::string> push_names;  // likewise, as bytes
uint32_t planted = 0;                 // what the next kernels write as the first push's failure

/// The emulated module's table. It also records what is freed or unmapped, and how long a kernel
/// may wait.
const ShoalCudaModule& watched_module() {
  static const ShoalCudaModule* const real = [] {
    const Result<const ShoalCudaModule*> loaded = load_cuda_module(SHOAL_EMULATED_MODULE);
    if (!loaded.ok()) ADD_FAILURE() << loaded.status().to_string();
    return *loaded;
  }();
  static const ShoalCudaModule watched = [] {
    ShoalCudaModule table = *real;
    table.release = [](void* memory) { return ++freed, real->release(memory); };
    table.release_pinned = [](void* memory) { return ++freed, real->release_pinned(memory); };
    table.close_memory = [](void* memory) { return ++freed, real->close_memory(memory); };
    table.push_all_reduce = [](const ShoalPushAllReduce* args, void* stream) {
      spin_ns = args->spin_ns;
      marks.push_back(args->mark);
      push_names.emplace_back(reinterpret_cast<const char*>(args->name), sizeof args->name);
      if (planted != 0) {
        std::memcpy(args->failure + 1, push_names.front().data(), push_names.front().size());
        *args->failure = planted;
      }
      return real->push_all_reduce(args, stream);
    };
    // CUDA and the emulator refuse a handle of this very process, so any memory takes the place of
    // a peer's.
    table.import_memory = [](const uint8_t*, void** memory) {
      return real->allocate(size_t{10} << 20, memory);
    };
    return table;
  }();
  return watched;
}

/// Opens rank 0 of a group. The other ranks have only areas, in which nothing happens.
Result<std::unique_ptr<DeviceCollective>> open(const std::shared_ptr<Device>& device,
                                               int world_size, int64_t timeout_ms) {
  const Exchange exchange = [world_size](std::string mine) -> Result<std::vector<std::string>> {
    return std::vector<std::string>(static_cast<size_t>(world_size), mine);
  };
  return open_cuda_ipc_collective(device, {0, world_size}, exchange, timeout_ms);
}

/// Runs a sum of the first of two floats into the second. If there are other ranks, they never
/// come.
Status reduce(Device& device, const Device::Memory& floats, DeviceCollective& collective) {
  const ReducePlan plan = make_reduce_plan(2, 2, collective.world().size);
  auto* const own = static_cast<float*>(floats.get());
  SHOAL_ASSIGN_OR_RETURN(const Device::Stream stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(const Device::Event done, device.make_event());
  SHOAL_RETURN_IF_ERROR(
      collective.enqueue_all_reduce(plan, own, own + 1, 1, stream.get(), Deadline::infinite()));
  SHOAL_RETURN_IF_ERROR(device.record(done.get(), stream.get()));
  SHOAL_RETURN_IF_ERROR(device.wait(done.get(), Deadline::after_ms(100'000), {}));
  return collective.check();
}

// A peer's kernel may still use the memory or have it mapped, so it is given back only when the
// process ends.
TEST(CudaIpcCollectiveTest, NothingIsFreedOrUnmappedAfterAHealthyEnd) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  freed = 0;
  {
    const auto collective = open(device, 2, 1'000);
    ASSERT_TRUE(collective.ok()) << collective.status().to_string();
  }
  EXPECT_EQ(freed, 0);
}

TEST(CudaIpcCollectiveTest, NothingIsFreedOrUnmappedAfterAFailure) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  const Device::Memory floats = *device->allocate(2 * sizeof(float));
  freed = 0;
  {
    const auto collective = open(device, 2, 100);
    ASSERT_TRUE(collective.ok()) << collective.status().to_string();
    const Status status = reduce(*device, floats, **collective);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.to_string().find("for rank 1"), std::string::npos) << status.to_string();
  }
  EXPECT_EQ(freed, 0);
}

// Pieces of one collective, and the two barriers of a gather, have the same mark.
TEST(CudaIpcCollectiveTest, AMarkTellsKindSizeAndNumberOfACollective) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  constexpr size_t kMost = 3 << 19;
  const Device::Memory memory = *device->allocate(2 * kMost * sizeof(float));
  auto* const own = static_cast<float*>(memory.get());
  const Device::Stream stream = *device->make_stream();
  const ReducePlan plan = make_reduce_plan(1, 1, 1);
  std::vector<std::vector<uint16_t>> ranks;
  for (int rank = 0; rank < 2; ++rank) {  // two that do the same, one after the other
    const auto collective = open(device, 1, 1'000);
    ASSERT_TRUE(collective.ok()) << collective.status().to_string();
    marks.clear();
    for (const size_t count : {size_t{4}, size_t{4}, size_t{8}, kMost})
      ASSERT_TRUE((*collective)
                      ->enqueue_all_reduce(plan, own, own + kMost, count, stream.get(),
                                           Deadline::infinite())
                      .ok());
    ASSERT_TRUE((*collective)
                    ->enqueue_all_gather(own, own + kMost, 8, stream.get(), Deadline::infinite())
                    .ok());
    ranks.push_back(marks);
  }
  EXPECT_EQ(ranks[0], ranks[1]);
  std::vector<uint16_t> different = ranks[0];
  ASSERT_GT(different.size(), 6u) << "the fourth sum takes several pushes";
  different.erase(std::unique(different.begin(), different.end()), different.end());
  EXPECT_EQ(different.size(), 5u);
  std::sort(different.begin(), different.end());
  EXPECT_EQ(std::unique(different.begin(), different.end()), different.end());
}

TEST(CudaIpcCollectiveTest, ARankInAnotherCollectiveIsNamed) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  const Device::Memory floats = *device->allocate(2 * sizeof(float));
  const auto collective = open(device, 1, 1'000);
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();
  push_names.clear();
  planted = 1 + 3 + kShoalOtherMark;
  const Status status = reduce(*device, floats, **collective);
  planted = 0;
  EXPECT_EQ(status.fault(), Fault::kTransport) << status.to_string();
  EXPECT_NE(status.to_string().find("collective 1 (all_reduce of 1 floats): rank 3 is in another "
                                    "collective"),
            std::string::npos)
      << status.to_string();
  EXPECT_EQ((*collective)->missing(), std::vector<int>{3});
}

// The host does not wait for a sum before it enqueues the next one.
TEST(CudaIpcCollectiveTest, TheCollectiveThatFailedIsNamedAndNotTheLastOne) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  const Device::Memory floats = *device->allocate(16 * sizeof(float));
  auto* const own = static_cast<float*>(floats.get());
  const Device::Stream stream = *device->make_stream();
  const auto collective = open(device, 1, 1'000);
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();
  const ReducePlan plan = make_reduce_plan(1, 1, 1);
  push_names.clear();
  for (const size_t count : {size_t{4}, size_t{8}}) {
    if (count == 8) planted = 1 + 3;
    const Status enqueued =
        (*collective)
            ->enqueue_all_reduce(plan, own, own + 8, count, stream.get(), Deadline::infinite());
    EXPECT_TRUE(enqueued.ok()) << enqueued.to_string();
  }
  planted = 0;
  const Status status = (*collective)->check();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.to_string();
  EXPECT_NE(status.to_string().find("collective 1 (all_reduce of 4 floats): the kernel waited 2000 "
                                    "ms for rank 3"),
            std::string::npos)
      << status.to_string();
}

// A timeout may have so many milliseconds that they would overflow as nanoseconds.
TEST(CudaIpcCollectiveTest, AKernelWaitsAlmostAsLongAsTheHost) {
  const std::shared_ptr<Device> device = *Device::open(watched_module(), 0);
  const Device::Memory floats = *device->allocate(2 * sizeof(float));
  constexpr uint64_t kMs = 1'000'000;
  constexpr uint64_t kCentury = uint64_t{100} * 365 * 24 * 3600 * 1000 * kMs;
  for (const auto& [timeout_ms, spins] : std::vector<std::pair<int64_t, uint64_t>>{
           {0, 2'000 * kMs},
           {1'000, 2'000 * kMs},
           {80'000, 70'000 * kMs},
           {20'000'000'000'000, kCentury},
           {std::numeric_limits<int64_t>::max(), kCentury},
       }) {
    const auto collective = open(device, 1, timeout_ms);
    ASSERT_TRUE(collective.ok()) << collective.status().to_string();
    ASSERT_TRUE(reduce(*device, floats, **collective).ok());
    EXPECT_EQ(spin_ns, spins) << timeout_ms;
  }
}

}  // namespace
}  // namespace shoal
