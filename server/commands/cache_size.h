#pragma once
#include <cstdint>
#include <string>

namespace shoal {

/// The bytes of this machine's largest caches together: one for each group of processors that
/// shares it. 0 if the kernel does not tell. `folder` is where it does.
uint64_t cache_bytes(const std::string& folder = "/sys/devices/system/cpu");

/// Whether weights of so many bytes can stay in caches of `caches` bytes from step to step, so that
/// their rate is not that of memory. False for caches that are not known, which is 0.
bool fit_in_caches(uint64_t weight_bytes, uint64_t caches);

}  // namespace shoal
