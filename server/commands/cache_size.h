#pragma once
#include <cstdint>
#include <string>

namespace shoal {

/// The bytes of this machine's largest caches together: one for each group of processors that
/// shares it. 0 if the kernel does not tell. `folder` is where it does.
uint64_t cache_bytes(const std::string& folder = "/sys/devices/system/cpu");

/// Whether the weights fit into caches of `caches` bytes. If they do, they stay there from step to
/// step, and how fast they are read says nothing about memory. False if `caches` is 0, which means
/// that the size is not known.
bool fit_in_caches(uint64_t weight_bytes, uint64_t caches);

}  // namespace shoal
