#pragma once
#include <string>

#include "runtime/base/status.h"
#include "runtime/device/cuda_module.h"

namespace shoal {

/// Where the module is looked for: `flag` (--cuda-module) where it is given, else libshoal_cuda.so
/// beside the running executable; never in the working directory or on the loader's path.
/// INVALID_ARGUMENT: flag is no absolute or relative path with a slash; NOT_FOUND: no such file.
Result<std::string> find_cuda_module(const std::string& flag);

/// Opens it for the rest of the process (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, never closed) and
/// checks struct size and build id. FAILED_PRECONDITION: the loader's own words, no entry, or of
/// another build (both ids named).
Result<const ShoalCudaModule*> load_cuda_module(const std::string& path);

}  // namespace shoal
