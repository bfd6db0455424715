// How the collective over a memfd divides a sum that is wider than a rank's slot. The device is the
// stand-in for a GPU's module.
#include "runtime/comm/device/host_memfd_collective.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/device/module_loader.h"
#include "tests/guard.h"

namespace shoal {
namespace {

TEST(HostMemfdCollectiveTest, TheLastPieceEndsWithTheSum) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(SHOAL_EMULATED_MODULE);
  ASSERT_TRUE(module.ok()) << module.status().to_string();
  const std::shared_ptr<Device> device = *Device::open(**module, 0);
  const int64_t bytes = host_memfd_bytes(1);
  const Fd memfd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memfd.get(), bytes), 0);
  const auto collective =
      open_host_memfd_collective(device, {0, 1}, memfd.get(), bytes, [] { return Status(); });
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();

  // A slot holds 262144 floats. What lies behind the result shows whether a piece was too wide.
  constexpr size_t kCount = 262'144 + 7;
  constexpr float kGuard = -7;
  const Device::Memory own = *device->allocate_pinned(2 * kCount * sizeof(float));
  const Device::Memory out = *device->allocate_pinned(2 * kCount * sizeof(float));
  std::fill_n(static_cast<float*>(own.get()), 2 * kCount, 1.0F);
  auto* const sum = static_cast<float*>(out.get());
  std::fill_n(sum, 2 * kCount, kGuard);
  const ReducePlan plan = make_reduce_plan(1, 1, 1);
  const Device::Stream stream = *device->make_stream();
  const Device::Event done = *device->make_event();
  Status status = (*collective)
                      ->enqueue_all_reduce(plan, static_cast<const float*>(own.get()), sum, kCount,
                                           stream.get(), Deadline::after_ms(kGuardMs));
  if (status.ok()) status = device->record(done.get(), stream.get());
  if (status.ok()) status = device->wait(done.get(), Deadline::after_ms(kGuardMs), {});
  ASSERT_TRUE(status.ok()) << status.to_string();
  std::vector<float> expected(2 * kCount, kGuard);
  std::fill_n(expected.begin(), kCount, 1.0F);
  EXPECT_EQ(std::vector<float>(sum, sum + 2 * kCount), expected);
}

}  // namespace
}  // namespace shoal
