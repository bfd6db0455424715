#include "server/commands/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <thread>

#include "runtime/base/deadline.h"
#include "runtime/base/thread_pool.h"

namespace shoal {
namespace {

/// The least size of one buffer, and the most that all buffers may take together.
constexpr size_t kLeastBufferBytes = size_t{128} << 20;
constexpr size_t kMostBufferBytes = size_t{1} << 30;
/// A pass reads this many times the size of the caches, if kMostBufferBytes allows it. So little of
/// what it reads is still in the caches from the pass before.
constexpr size_t kTimesCaches = 2;
/// Far enough ahead for the data to arrive from memory in time, and near enough for it to stay in
/// L1. Measured speeds are equal from 1 to 4 KiB.
constexpr size_t kPrefetchBytes = 2048;

/// One AVX-512 register, two of AVX2 or four of SSE2 or NEON; the compiler splits it as the target
/// requires.
using Vector = uint64_t __attribute__((vector_size(64)));
constexpr size_t kUnroll = 8;
constexpr size_t kStepBytes = kUnroll * sizeof(Vector);  ///< a buffer is a multiple of it

/// Inlined into each of the functions below, so that it is compiled with the instructions of each.
template <bool Prefetch>
[[gnu::always_inline]] inline uint64_t sum_body(const std::byte* data, size_t bytes) {
  Vector sums[kUnroll] = {};
  for (size_t at = 0; at < bytes; at += kStepBytes) {
    for (size_t i = 0; i < kUnroll; ++i) {
      const std::byte* from = data + at + i * sizeof(Vector);
      if constexpr (Prefetch) __builtin_prefetch(from + kPrefetchBytes);  // harmless past the end
      Vector value;
      std::memcpy(&value, from, sizeof value);
      sums[i] += value;
    }
  }
  uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (size_t lane = 0; lane < 8; ++lane) total += sum[lane];
  }
  return total;
}

#if defined(__x86_64__)
template <bool Prefetch>
[[gnu::target("avx512f")]] uint64_t sum_avx512(const std::byte* data, size_t bytes) {
  return sum_body<Prefetch>(data, bytes);
}
template <bool Prefetch>
[[gnu::target("avx2")]] uint64_t sum_avx2(const std::byte* data, size_t bytes) {
  return sum_body<Prefetch>(data, bytes);
}
#endif
template <bool Prefetch>
uint64_t sum_base(const std::byte* data, size_t bytes) {
  return sum_body<Prefetch>(data, bytes);
}

template <bool Prefetch>
auto best_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512<Prefetch>;
  if (__builtin_cpu_supports("avx2")) return sum_avx2<Prefetch>;
#endif
  return sum_base<Prefetch>;
}

}  // namespace

std::array<ReadLoop, 4> read_order(int number) {
  constexpr ReadLoop kLoops[] = {{.prefetch = false, .huge_pages = true},
                                 {.prefetch = true, .huge_pages = true},
                                 {.prefetch = false, .huge_pages = false},
                                 {.prefetch = true, .huge_pages = false}};
  // A Williams square: the steps between neighbours, 1, 2 and 3 modulo 4, are all different.
  constexpr size_t kPlaces[] = {0, 1, 3, 2};
  std::array<ReadLoop, 4> order;
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = kLoops[(kPlaces[i] + static_cast<size_t>(number)) % order.size()];
  return order;
}

const char* ReadLoop::name() const {
  if (huge_pages) {
    return prefetch ? "prefetching loads, huge pages if granted"
                    : "plain loads, huge pages if granted";
  }
  return prefetch ? "prefetching loads, small pages" : "plain loads, small pages";
}

Result<ReadBandwidth> ReadBandwidth::create(int threads, std::vector<int> cpus,
                                            size_t cache_bytes) {
  const auto count = static_cast<size_t>(threads);
  const size_t wanted = std::max(kLeastBufferBytes, kTimesCaches * cache_bytes / count);
  const size_t most = std::min(wanted, kMostBufferBytes / count / 2);
  const size_t bytes = most - most % kStepBytes;
  std::vector<Memory> memory(count);
  for (Memory& of_thread : memory) {
    SHOAL_ASSIGN_OR_RETURN(of_thread.huge_pages, AlignedBuffer::allocate(bytes));
    SHOAL_ASSIGN_OR_RETURN(of_thread.small_pages, AlignedBuffer::allocate(bytes));
    // Before the first touch. A kernel that refuses has no huge pages.
    (void)::madvise(of_thread.small_pages.as<>(), of_thread.small_pages.bytes(), MADV_NOHUGEPAGE);
  }
  return ReadBandwidth(std::move(memory), bytes, std::move(cpus));
}

ReadRate ReadBandwidth::measure() {
  ReadRate best;
  const auto passes = [&] {
    ThreadPool pool(static_cast<int>(memory_.size()), cpus_);
    const auto of = [&](int thread) -> const Memory& {
      return memory_[static_cast<size_t>(thread)];
    };
    // Touch the memory first in the thread that will read it. On NUMA machines this places it near
    // that thread.
    if (measurements_ == 0) {
      pool.run([&](int thread) {
        std::memset(of(thread).huge_pages.as<>(), 1, bytes_);
        std::memset(of(thread).small_pages.as<>(), 1, bytes_);
      });
    }
    std::atomic<uint64_t> kept{0};  // keeps the compiler from removing the sums
    for (const ReadLoop loop : read_order(measurements_++)) {
      const auto sum = loop.prefetch ? best_sum<true>() : best_sum<false>();
      const Clock::time_point start = Clock::now();
      pool.run([&](int thread) { kept += sum(of(thread).of(loop), bytes_); });
      best = std::max(best,
                      {static_cast<double>(bytes_ * memory_.size()) / seconds_since(start), loop});
    }
  };
  // Run in a separate thread, because the pool binds its caller to a CPU and processes spawned
  // later would inherit that.
  std::thread(passes).join();
  return best;
}

}  // namespace shoal
