#pragma once
#include <string>
#include <vector>

namespace shoal {

/// The main function of the process that probe_gpus starts, with the fields of GpuProbeRequest.
/// Looks at the devices and writes its findings (gpu_findings.h) to stdout, one JSON object a line.
/// Ends the process with exit code 0 when it is done, or 1 if nobody reads its output, and does not
/// return.
int gpu_facts_main(const char* cuda_module, const char* nccl_library, const char* ranks,
                   const char* ranks_per_gpu, const std::vector<std::string>& cublas_libraries);

}  // namespace shoal
