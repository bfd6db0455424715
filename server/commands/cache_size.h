#pragma once
#include <cstdint>
#include <string>

namespace shoal {

/// The bytes of this machine's largest caches together: one for each group of processors that
/// shares it. 0 if the kernel does not tell. `folder` is where it does.
uint64_t cache_bytes(const std::string& folder = "/sys/devices/system/cpu");

}  // namespace shoal
