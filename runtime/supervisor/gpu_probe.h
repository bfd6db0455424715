#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// What is to be found out about devices.
struct GpuProbeRequest {
  std::string cuda_module;   ///< as --cuda-module; empty: beside the program
  std::string nccl_library;  ///< a path, or a name for the loader's search
  int ranks = 1;
  int ranks_per_gpu = 1;
  double deadline_s = 20;  ///< of everything together: contexts on eight devices take some seconds
};

/// Asks a process of its own (posix_spawn of this program, which must dispatch the word "gpu-facts"
/// to gpu_facts_main) about module, driver, devices, NCCL and peer access, and fills in *facts.
/// Loading CUDA, a context and above all peer access may hang or crash: what was found before that
/// is kept, the pair that hung is named, and this process never has a context. Never fails: what
/// stands in the way is in facts->error. Leaves no process behind, but one that the kernel does not
/// let die (it says so).
void probe_gpus(const GpuProbeRequest& request, GpuFacts* facts);

/// What that process says, taken over line by line.
struct GpuFindings {
  GpuFacts* facts;
  std::string doing;  ///< what it has begun and not ended, "load the CUDA module"
  bool done = false;

  /// INVALID_ARGUMENT: no line of its.
  Status take(std::string_view line);
};

/// Its lines, each one JSON object and its end of line.
std::string gpu_doing_line(std::string_view what);
std::string gpu_error_line(std::string_view at, std::string_view words);
std::string gpu_module_line(const std::string& path, std::string_view build_id,
                            std::string_view architectures, int cuda_runtime);
std::string gpu_driver_line(std::string_view facts);  ///< as the module's facts() writes it
std::string gpu_nccl_line(int version, const std::string& path, std::string_view error);
std::string gpu_cublas_line(const std::string& version);
std::string gpu_peer_line(int from, int to, std::string_view verdict);
std::string gpu_done_line();

/// The pairs that peer access is tried on: of the group's devices, those that the driver allows.
std::vector<std::pair<int, int>> gpu_pairs_to_try(const GpuFacts& facts);

/// That process: finds out, and writes one JSON object a line to stdout. Its exit code.
int gpu_facts_main(const char* cuda_module, const char* nccl_library, const char* ranks,
                   const char* ranks_per_gpu);

}  // namespace shoal
