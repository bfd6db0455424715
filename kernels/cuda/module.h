#pragma once
#include <cstddef>
#include <cstdint>

// The boundary between the base program, which has no CUDA symbol, and libshoal_cuda.so, opened at run time. Plain C,
// so that the two may be built by different compilers.

extern "C" {

/// What the module offers. A reader checks struct_bytes before it touches a field it was built with.
struct ShoalCudaModule {
  uint32_t struct_bytes;
  const char* version;           ///< Shoal's, as `shoal --version` prints it
  int32_t cuda_runtime_version;  ///< cudart the module was linked with, e.g. 13000
  /// Devices that can be used, or -1 with the reason (the CUDA runtime's own words) in error, cut to error_bytes.
  int32_t (*device_count)(char* error, size_t error_bytes);
  /// acc[i] += b[i] for i < count on the current device, in stream (a cudaStream_t; nullptr: the default one): the fold
  /// of two nodes of the reduction tree. 0, or a cudaError_t.
  int32_t (*add)(float* acc, const float* b, int64_t count, void* stream);
};

/// The module's one exported symbol, "shoal_cuda_module". The result lives as long as the process.
const ShoalCudaModule* shoal_cuda_module();
using ShoalCudaModuleFunction = const ShoalCudaModule* (*)();
}
