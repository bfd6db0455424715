#include <cstdio>
#include <cuda_runtime.h>

#include "runtime/device/cuda_module.h"

namespace {

/// Elementwise, so any launch shape gives the same bits.
__global__ void add_kernel(float* acc, const float* b, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) acc[i] += b[i];
}

int32_t add(float* acc, const float* b, int64_t count, void* stream) {
  constexpr int kThreads = 256;
  constexpr int64_t kMaxBlocks = 1024;  // the loop strides over the rest
  if (count <= 0) return 0;
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  add_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(acc, b, count);
  return static_cast<int32_t>(cudaGetLastError());
}

int32_t device_count(char* error, size_t error_bytes) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return count;
  std::snprintf(error, error_bytes, "%s: %s", cudaGetErrorName(result), cudaGetErrorString(result));
  return -1;
}

constexpr ShoalCudaModule kModule{sizeof(ShoalCudaModule), SHOAL_VERSION, CUDART_VERSION, device_count, add};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  return &kModule;
}
