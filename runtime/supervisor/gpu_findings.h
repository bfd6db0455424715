#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// What the process that looks at the devices (gpu_facts_main.h) reports, read line by line.
struct GpuFindings {
  GpuFacts* facts;
  std::string doing;  ///< the step that it has begun last, "load the CUDA module"
  bool done = false;

  /// INVALID_ARGUMENT: this is not one of its lines.
  Status take(std::string_view line);
};

/// The lines that it writes. Each is one JSON object and an end of line.
std::string gpu_doing_line(std::string_view what);
std::string gpu_error_line(GpuErrorAt at, std::string_view words);
std::string gpu_module_line(const std::string& path, std::string_view build_id,
                            std::string_view architectures, int cuda_runtime);
std::string gpu_driver_line(std::string_view facts);  ///< as the module's facts() writes it
std::string gpu_memory_line(int device, uint64_t free_bytes);
std::string gpu_nccl_line(int version, const std::string& path, std::string_view error);
std::string gpu_cublas_line(const std::string& version, const std::string& path,
                            std::string_view error);
std::string gpu_peer_line(const GpuPeerVerdict& verdict);
std::string gpu_done_line();

/// The pairs on which peer access is tried: of the group's devices, those that the driver allows.
std::vector<std::pair<int, int>> gpu_pairs_to_try(const GpuFacts& facts);

}  // namespace shoal
