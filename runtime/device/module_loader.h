#pragma once
#include <string>

#include "runtime/base/status.h"
#include "runtime/device/cuda_module.h"

namespace shoal {

/// Finds the module: `flag` (--cuda-module) if it is given. Otherwise libshoal_cuda.so beside the
/// running executable (a build folder), or else in ../lib/shoal of its folder (an installation).
/// The working directory and the loader's path are never searched. INVALID_ARGUMENT: flag has no
/// slash, so it is neither an absolute nor a relative path. NOT_FOUND: there is no such file.
Result<std::string> find_cuda_module(const std::string& flag);

/// Opens the module for the rest of the process (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, never
/// closed) and checks struct size and build id. FAILED_PRECONDITION: the loader cannot open it
/// (with its own message), it has no entry function, or it is of another build (naming both ids).
Result<const ShoalCudaModule*> load_cuda_module(const std::string& path);

/// The build id that a module must have for this program to load it.
const char* cuda_module_build_id();

}  // namespace shoal
