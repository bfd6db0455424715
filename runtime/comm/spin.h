#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace shoal {

/// The CPUs that a thread may run on, one bit each. Plain data, because it is stored in segments
/// and sent in hellos.
using CpuMask = std::array<uint64_t, 16>;

/// The CPUs of the calling thread. All bits are set if the machine has more CPUs than the mask.
CpuMask calling_thread_cpus();

/// How long a rank polls for its peers before it sleeps, in nanoseconds. Waking a sleeper costs
/// 20-28 us on an idle core, so polling pays for about twice that time. If the ranks together have
/// fewer CPUs than there are ranks, polling only keeps the awaited peer from running, so it ends
/// almost at once. masks: one per rank.
int64_t spin_budget_ns(std::span<const CpuMask> masks);

/// Requests the cache line that holds `address` for writing, without waiting for it.
inline void prefetch_for_write(const void* address) {
#if defined(__x86_64__)
  // The builtin would emit a prefetch for reading here.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

/// Hints to the core that this is a polling loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield does nothing on most cores, and isb waits about as long as pause
#endif
}

}  // namespace shoal
