#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace shoal {

/// The CPUs that a thread may run on, one bit each. Plain data: it lies in segments and travels in
/// hellos.
using CpuMask = std::array<uint64_t, 16>;

/// Of the calling thread. All bits on a machine with more CPUs than the mask has.
CpuMask calling_thread_cpus();

/// How long a rank polls for its peers before it sleeps. A sleeper's wake-up costs 20-28 us on an
/// idle core, so polling pays for about twice that. Where the ranks have fewer CPUs between them
/// than there are ranks, a poll only keeps the awaited peer from running: it ends almost at once.
/// masks: one per rank.
int64_t spin_budget_ns(std::span<const CpuMask> masks);

/// Asks for the cache line that holds `address` with the right to write it, without waiting.
inline void prefetch_for_write(const void* address) {
#if defined(__x86_64__)
  asm volatile(
      "prefetchw %0"
      :
      : "m"(*static_cast<const char*>(address)));  // the builtin gives a read prefetch here
#else
  __builtin_prefetch(address, 1);
#endif
}

/// Tells the core that this is a polling loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace shoal
