#pragma once
#include <string>
#include <vector>

#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// What is to be found out about devices.
struct GpuProbeRequest {
  std::string cuda_module;                    ///< as in --cuda-module; empty: beside the program
  std::string nccl_library;                   ///< a path, or a name for the loader's search
  std::vector<std::string> cublas_libraries;  ///< the same, tried in turn; empty: none is loaded
  int ranks = 1;
  int ranks_per_gpu = 1;
  /// For everything together. Contexts on eight devices take some seconds.
  double deadline_s = 20;
};

/// Starts a separate process (posix_spawn of this program, which must dispatch the word "gpu-facts"
/// to gpu_facts_main) that looks at the module, driver, devices and their free memory, NCCL and
/// peer access, and fills in *facts. Loading CUDA, making a context and above all peer access may
/// hang or crash. Then what was found before is kept, and the pair that hung is named. This process
/// never has a context. Never fails: what is in the way is in facts->error. Leaves no process
/// behind, except one that the kernel does not let die, which a warning names.
void probe_gpus(const GpuProbeRequest& request, GpuFacts* facts);

}  // namespace shoal
