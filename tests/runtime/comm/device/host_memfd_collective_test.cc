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

namespace shoal {
namespace {

TEST(HostMemfdCollectiveTest, TheLastPieceEndsWithTheSum) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(SHOAL_FAKE_CUDA_MODULE);
  ASSERT_TRUE(module.ok()) << module.status().to_string();
  const std::shared_ptr<Device> device = *Device::open(**module, 0);
  const int64_t bytes = host_memfd_bytes(1);
  const Fd memfd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memfd.get(), bytes), 0);
  const auto collective =
      open_host_memfd_collective(device, {0, 1}, memfd.get(), bytes, [] { return Status(); });
  ASSERT_TRUE(collective.ok()) << collective.status().to_string();

  // A slot holds 262144 floats. The fake device's memory is the host's, so what lies behind the
  // result shows whether a piece was too wide.
  constexpr size_t kCount = 262'144 + 7;
  constexpr float kGuard = -7;
  std::vector<float> own(2 * kCount, 1), out(2 * kCount, kGuard);
  const ReducePlan plan = make_reduce_plan(1, 1, 1);
  const Status status = (*collective)
                            ->enqueue_all_reduce(plan, own.data(), out.data(), kCount, nullptr,
                                                 Deadline::after_ms(10'000));
  ASSERT_TRUE(status.ok()) << status.to_string();
  std::vector<float> expected(2 * kCount, kGuard);
  std::fill_n(expected.begin(), kCount, 1.0F);
  EXPECT_EQ(out, expected);
}

}  // namespace
}  // namespace shoal
