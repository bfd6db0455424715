#pragma once
#include <cstdint>

namespace shoal {

/// What the ranks compute a model on, and so the memory in which their transport moves partial
/// sums.
enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

/// "cpu" or "cuda", which are also the values of --device.
constexpr const char* device_name(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

}  // namespace shoal
