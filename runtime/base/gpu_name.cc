#include "runtime/base/gpu_name.h"

#include "runtime/base/cat.h"

namespace shoal {

std::string to_text(const GpuName& gpu) {
  if (gpu.uuid.empty() && gpu.name.empty()) return cat("GPU ", gpu.number);
  const char* const between = gpu.uuid.empty() || gpu.name.empty() ? "" : ", ";
  return cat("GPU ", gpu.number, " (", gpu.uuid, between, gpu.name, ")");
}

bool is_same_gpu(const GpuName& a, const GpuName& b) {
  if (a.uuid.empty() || b.uuid.empty()) return a.number == b.number;
  return a.uuid == b.uuid;
}

}  // namespace shoal
