// The lanes of the emulated device: barriers and what their absence shows, block memory, copies
// that are under way, the order of turns, and the limits of a launch.
#include "tests/emulator/lanes.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/emulator/on_device.h"

#ifdef SHOAL_TSAN
static int races = 0;
/// ThreadSanitizer calls this for each race that it reports.
extern "C" void __tsan_on_report(void*) {
  ++races;
}
#endif

namespace shoal::emulator {
namespace {

constexpr uint32_t kPoison = 0xffffffff;

struct SumArgs {
  uint32_t* out;
  bool waits;  ///< false: the barrier that the kernel needs is missing
};

/// The lane's place in block memory.
uint32_t* word_of(unsigned lane) {
  return reinterpret_cast<uint32_t*>(cuda::block_memory()) + lane;
}

/// Each lane reads what another warp has written.
void exchange_in_block(SumArgs args) {
  const unsigned lane = threadIdx.x, lanes = blockDim.x;
  *word_of(lane) = lane;
  if (args.waits) __syncthreads();
  cuda::store_global(args.out + lane, *word_of((lane + 40) % lanes));
}

/// Each lane reads what another lane of its warp has written.
void exchange_in_warp(SumArgs args) {
  const unsigned lane = threadIdx.x;
  *word_of(lane) = lane;
  if (args.waits) __syncwarp();
  cuda::store_global(args.out + lane, *word_of(lane ^ 7));
}

/// A ring of 160 steps: each warp reads what the next warp wrote 80 steps ago. So the missing
/// barrier shows only if one warp is that far ahead of another.
void exchange_in_ring(SumArgs args) {
  constexpr unsigned kSteps = 400, kRing = 160, kLag = 80;
  const unsigned lane = threadIdx.x, lanes = blockDim.x;
  for (unsigned step = 0; step < kRing; ++step) *word_of(step * lanes + lane) = step - kRing;
  __syncthreads();
  uint32_t wrong = 0;
  for (unsigned step = 0; step < kSteps; ++step) {
    *word_of(step % kRing * lanes + lane) = step;
    __syncwarp();
    if (args.waits) __syncthreads();
    const unsigned read = step - kLag;
    if (*word_of(read % kRing * lanes + (lane + 32) % lanes) != read) ++wrong;
  }
  cuda::store_global(args.out + lane, wrong);
}

using Kernel = void (*)(SumArgs);

std::vector<uint32_t> result_of(Kernel kernel, bool waits) {
  const OnDevice<uint32_t> out(128);
  EXPECT_EQ(run_block(kernel, 128, 128 * 160 * 4, {out.get(), waits}), cudaSuccess);
  return out.values();
}

/// The number of orders whose result is another than that of the complete kernel.
size_t orders_that_notice(Kernel kernel) {
  const std::vector<uint32_t> right = result_of(kernel, true);
  size_t noticed = 0;
  for (const std::string& order : orders()) {
    set("ORDER", order);
    EXPECT_EQ(result_of(kernel, true), right) << order;
    if (result_of(kernel, false) != right) ++noticed;
  }
  return noticed;
}

constexpr Kernel kExchanges[] = {&exchange_in_block, &exchange_in_warp, &exchange_in_ring};

TEST(LanesTest, AMissingBarrierShowsInSomeOrder) {
#ifdef SHOAL_TSAN
  GTEST_SKIP() << "ThreadSanitizer would report the race";
#endif
  for (Kernel kernel : kExchanges)
    with_settings({}, [&] { EXPECT_GE(orders_that_notice(kernel), 1U); });
}

#ifdef SHOAL_TSAN
TEST(LanesTest, ThreadSanitizerSeesAMissingBarrier) {
  for (Kernel kernel : kExchanges) {
    with_settings({}, [&] {
      const std::vector<uint32_t> right = result_of(kernel, true);
      set("ORDER", "3");
      EXPECT_EQ(result_of(kernel, true), right);
      EXPECT_EQ(races, 0);
      result_of(kernel, false);
      EXPECT_GT(races, 0);
    });
  }
}
#endif

void any_kernel(SumArgs args) {
  const int first = __syncthreads_or(threadIdx.x == 77 ? 4 : 0);
  const int second = __syncthreads_or(0);
  cuda::store_global(args.out + threadIdx.x, static_cast<uint32_t>(first * 2 + second));
}

TEST(LanesTest, ABarrierTellsWhetherAnyLaneGaveAValue) {
  with_settings({}, [] {
    for (const std::string& order : orders()) {
      set("ORDER", order);
      EXPECT_EQ(result_of(&any_kernel, true), std::vector<uint32_t>(128, 2)) << order;
    }
  });
}

/// Each lane counts the words of its block memory that are no poison, and then writes to them all.
void count_words(SumArgs args) {
  uint32_t written = 0;
  for (unsigned i = 0; i < 16; ++i) written += *word_of(threadIdx.x * 16 + i) == kPoison ? 0 : 1;
  for (unsigned i = 0; i < 16; ++i) *word_of(threadIdx.x * 16 + i) = i;
  cuda::store_global(args.out + blockIdx.x * blockDim.x + threadIdx.x, written);
}

TEST(LanesTest, BlockMemoryIsPoisonAtTheBeginningOfEachBlock) {
  with_settings({}, [] {
    const OnDevice<uint32_t> out(9 * 128);
    for (int launches = 0; launches < 2; ++launches) {
      ASSERT_EQ(cuda::launch(&count_words, cuda::Grid{9, 1, 1}, 128, 128 * 64,
                             SumArgs{out.get(), true}, nullptr),
                cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      EXPECT_EQ(out.values(), std::vector<uint32_t>(9 * 128, 0));
    }
  });
}

struct CopyArgs {
  const uint32_t* from;  ///< 4 words of each copy
  uint32_t* out;         ///< what the lane sees of the first word of each copy
};

/// Looks at the four copies after a wait that leaves this many groups under way. The third copy
/// writes zeros, and the fourth one is in no group.
template <int kLeft>
void copy_kernel(CopyArgs args) {
  for (unsigned i = 0; i < 4; ++i) {
    const bool take = i != 2;
    cuda::copy_async(word_of(4 * i), take ? args.from + 4 * i : nullptr, take);
    if (i < 3) cuda::copy_async_commit();
  }
  cuda::copy_async_wait<kLeft>();
  for (unsigned i = 0; i < 4; ++i) cuda::store_global(args.out + i, *word_of(4 * i));
}

std::vector<uint32_t> copied(void (*kernel)(CopyArgs)) {
  std::vector<uint32_t> values(16);
  std::iota(values.begin(), values.end(), 100U);
  const OnDevice<uint32_t> from(values), out(4);
  EXPECT_EQ(run_block(kernel, 1, 64, {from.get(), out.get()}), cudaSuccess);
  return out.values();
}

TEST(LanesTest, CopiesComeAsEarlyOrAsLateAsADeviceMayBringThem) {
  using Words = std::vector<uint32_t>;
  with_settings({{"COPIES", "early"}}, [] {
    EXPECT_EQ(copied(&copy_kernel<3>), (Words{100, 104, 0, 112}));
  });
  with_settings({{"COPIES", "late"}}, [] {
    EXPECT_EQ(copied(&copy_kernel<0>), (Words{100, 104, 0, kPoison}));
    EXPECT_EQ(copied(&copy_kernel<1>), (Words{100, 104, kPoison, kPoison}));
    EXPECT_EQ(copied(&copy_kernel<2>), (Words{100, kPoison, kPoison, kPoison}));
    EXPECT_EQ(copied(&copy_kernel<3>), Words(4, kPoison));
  });
}

struct TicketArgs {
  unsigned* next;
  uint32_t* of_block;
};

void take_ticket(TicketArgs args) {
  cuda::store_global(args.of_block + blockIdx.x, atomicAdd(args.next, 1));
}

/// When each of 40 blocks had its turn.
std::vector<uint32_t> tickets() {
  const OnDevice<unsigned> next(std::vector<unsigned>{0});
  const OnDevice<uint32_t> of_block(40);
  EXPECT_EQ(cuda::launch(&take_ticket, 40, 1, TicketArgs{next.get(), of_block.get()}, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return of_block.values();
}

TEST(LanesTest, TakeTheirTurnsInTheOrderThatIsAskedFor) {
  with_settings({}, [] {
    std::set<std::vector<uint32_t>> seen;
    for (const std::string& order : orders()) {
      set("ORDER", order);
      std::vector<uint32_t> turns = tickets();
      EXPECT_EQ(tickets(), turns) << order << ": a seed gives one order";
      seen.insert(turns);
      EXPECT_TRUE(order != "forward" || std::is_sorted(turns.begin(), turns.end()));
      std::sort(turns.begin(), turns.end());
      for (uint32_t i = 0; i < 40; ++i) EXPECT_EQ(turns[i], i);
    }
    EXPECT_EQ(seen.size(), orders().size());
  });
}

struct FlagArgs {
  uint64_t* flag;
  uint32_t* out;
  unsigned setter;  ///< the block that sets the flag
};

void wait_for_flag(FlagArgs args) {
  if (blockIdx.x == args.setter && threadIdx.x == 0) cuda::store_release(args.flag, 1);
  while (cuda::load_acquire(args.flag) == 0) {
  }
  cuda::store_global(args.out + blockIdx.x * blockDim.x + threadIdx.x, 1U);
}

TEST(LanesTest, ThoseThatPollLetTheOthersRun) {
  with_settings({}, [] {
    for (const std::string& order : orders()) {
      set("ORDER", order);
      for (const unsigned setter : {0U, 3U}) {
        const OnDevice<uint64_t> flag(std::vector<uint64_t>{0});
        const OnDevice<uint32_t> out(4 * 64);
        ASSERT_EQ(
            cuda::launch(&wait_for_flag, 4, 64, FlagArgs{flag.get(), out.get(), setter}, nullptr),
            cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(out.values(), std::vector<uint32_t>(4 * 64, 1));
      }
    }
  });
}

void do_nothing(SumArgs) {}

TEST(LanesTest, ALaunchHasLimits) {
  with_settings({}, [] {
    const auto launch = [](cuda::Grid grid, int threads, size_t memory) {
      return cuda::launch(&do_nothing, grid, threads, memory, SumArgs{}, nullptr);
    };
    EXPECT_EQ(launch({1, 1, 1}, 32, 48 * 1024), cudaSuccess);
    EXPECT_EQ(launch({1, 1, 1}, 32, 48 * 1024 + 1), cudaErrorInvalidValue) << "it must be loaded";
    EXPECT_EQ(cuda::load_kernel(&do_nothing, 64 * 1024), cudaSuccess);
    EXPECT_EQ(launch({1, 1, 1}, 32, 64 * 1024 + 1), cudaErrorInvalidValue);
    EXPECT_EQ(cuda::load_kernel(&do_nothing, 99 * 1024), cudaSuccess);
    EXPECT_EQ(cuda::load_kernel(&do_nothing, 0), cudaSuccess) << "which takes nothing back";
    EXPECT_EQ(launch({1, 1, 1}, 1024, 99 * 1024), cudaSuccess);
    EXPECT_EQ(launch({1, 1, 1}, 32, 99 * 1024 + 1), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch({1, 1, 1}, 1025, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch({1, 1, 1}, 0, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch({0, 1, 1}, 32, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch({1, 65536, 1}, 32, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(launch({1, 1, 65536}, 32, 0), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "the device has not failed";
    EXPECT_EQ(cuda::load_kernel(&do_nothing, 99 * 1024 + 1), cudaErrorInvalidValue);
  });
}

}  // namespace
}  // namespace shoal::emulator
