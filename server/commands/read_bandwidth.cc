#include "server/commands/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "runtime/base/aligned_buffer.h"
#include "runtime/base/deadline.h"
#include "runtime/base/thread_pool.h"

namespace shoal {
namespace {

constexpr int kPasses = 3;
constexpr size_t kBytesPerThread = size_t{256} << 20;
constexpr size_t kMaxBytes = size_t{4} << 30;
/// Far enough ahead for the data to arrive from memory in time, and near enough for it to stay in
/// L1. Measured speeds are equal from 1 to 4 KiB.
constexpr size_t kPrefetchBytes = 2048;

/// One AVX-512 register, two of AVX2 or four of SSE2 or NEON; the compiler splits it as the target
/// requires.
using Vector = uint64_t __attribute__((vector_size(64)));
constexpr size_t kUnroll = 8;

/// Inlined into each of the functions below, so that it is compiled with the instructions of each.
[[gnu::always_inline]] inline uint64_t sum_body(const std::byte* data, size_t bytes) {
  Vector sums[kUnroll] = {};
  for (size_t at = 0; at < bytes; at += sizeof sums) {
    for (size_t i = 0; i < kUnroll; ++i) {
      const std::byte* from = data + at + i * sizeof(Vector);
      __builtin_prefetch(from + kPrefetchBytes);  // a hint, harmless past the end
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
[[gnu::target("avx512f")]] uint64_t sum_avx512(const std::byte* data, size_t bytes) {
  return sum_body(data, bytes);
}
[[gnu::target("avx2")]] uint64_t sum_avx2(const std::byte* data, size_t bytes) {
  return sum_body(data, bytes);
}
#endif
uint64_t sum_base(const std::byte* data, size_t bytes) {
  return sum_body(data, bytes);
}

auto best_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_base;
}

}  // namespace

Result<ReadBandwidth> ReadBandwidth::create(int threads, std::vector<int> cpus) {
  const size_t bytes =
      std::min(kBytesPerThread, kMaxBytes / static_cast<size_t>(threads)) & ~size_t{4095};
  std::vector<AlignedBuffer> buffers;
  for (int thread = 0; thread < threads; ++thread) {
    SHOAL_ASSIGN_OR_RETURN(AlignedBuffer buffer, AlignedBuffer::allocate(bytes));
    buffers.push_back(std::move(buffer));
  }
  return ReadBandwidth(std::move(buffers), bytes, std::move(cpus));
}

double ReadBandwidth::measure() {
  const size_t bytes = bytes_per_thread_;
  const auto buffer = [&](int thread) {
    return buffers_[static_cast<size_t>(thread)].as<std::byte>();
  };
  double best = 0;
  const auto passes = [&] {
    ThreadPool pool(static_cast<int>(buffers_.size()), cpus_);
    // Touch the memory first in the thread that will read it. On NUMA machines this places it near
    // that thread.
    if (!touched_) pool.run([&](int thread) { std::memset(buffer(thread), 1, bytes); });
    touched_ = true;
    const auto sum = best_sum();
    std::atomic<uint64_t> kept{0};  // keeps the compiler from removing the sums
    for (int pass = 0; pass < kPasses; ++pass) {
      const Clock::time_point start = Clock::now();
      pool.run([&](int thread) { kept += sum(buffer(thread), bytes); });
      best = std::max(best, static_cast<double>(bytes * buffers_.size()) / seconds_since(start));
    }
  };
  // Run in a separate thread, because the pool binds its caller to a CPU and processes spawned
  // later would inherit that.
  std::thread(passes).join();
  return best;
}

}  // namespace shoal
