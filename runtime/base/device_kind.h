#pragma once
#include <cstdint>

namespace shoal {

/// The memory in which the ranks' transport moves partial sums: the host's, or that of CUDA
/// devices.
enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

/// "cpu" or "cuda", which are also the values of --device.
constexpr const char* device_name(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

}  // namespace shoal
