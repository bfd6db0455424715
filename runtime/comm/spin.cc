#include "runtime/comm/spin.h"

#include <bit>
#include <cstring>
#include <sched.h>

namespace shoal {
namespace {

constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kCrowdedSpinNs = 1'000;

}  // namespace

CpuMask calling_thread_cpus() {
  static_assert(sizeof(CpuMask) == sizeof(cpu_set_t));
  CpuMask mask;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    std::memcpy(mask.data(), &set, sizeof(set));
  } else {
    mask.fill(~uint64_t{0});
  }
  return mask;
}

int64_t spin_budget_ns(std::span<const CpuMask> masks) {
  CpuMask all{};
  for (const CpuMask& mask : masks) {
    for (size_t word = 0; word < all.size(); ++word) all[word] |= mask[word];
  }
  size_t cpus = 0;
  for (const uint64_t word : all) cpus += static_cast<size_t>(std::popcount(word));
  return cpus >= masks.size() ? kSpinNs : kCrowdedSpinNs;
}

}  // namespace shoal
