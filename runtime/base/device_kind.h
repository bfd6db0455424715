#pragma once
#include <cstdint>

namespace shoal {

/// Where the ranks' transport moves partial sums: in host memory, or in that of CUDA devices.
enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

/// "cpu", "cuda": also the value of --device.
constexpr const char* device_name(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

}  // namespace shoal
