// The table, and the entries that are a single call of the CUDA runtime.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"
#include "kernels/cuda/machine.cuh"

namespace shoal::cuda {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == kShoalIpcHandleBytes);

cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

const char* error_text(int32_t error) {
  thread_local char text[200];
  const auto code = static_cast<cudaError_t>(error);
  std::snprintf(text, sizeof text, "%s: %s", cudaGetErrorName(code), cudaGetErrorString(code));
  return text;
}

int32_t select(int32_t device) {
  return cudaSetDevice(device);
}

int32_t load_kernels() {
  if (const int32_t error = load_tree_sum(); error != cudaSuccess) return error;
  if (const int32_t error = load_push_all_reduce(); error != cudaSuccess) return error;
  if (const int32_t error = load_product(); error != cudaSuccess) return error;
  if (const int32_t error = load_elementwise(); error != cudaSuccess) return error;
  if (const int32_t error = load_norms(); error != cudaSuccess) return error;
  if (const int32_t error = load_qkv(); error != cudaSuccess) return error;
  if (const int32_t error = load_attention(); error != cudaSuccess) return error;
  return load_arithmetic();
}

int32_t capability(int32_t device, int32_t* major, int32_t* minor) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess)
    return error;
  *major = properties.major;
  *minor = properties.minor;
  return cudaSuccess;
}

int32_t allocate_raw(size_t bytes, void** memory) {
  *memory = nullptr;
  return cudaMalloc(memory, std::max<size_t>(bytes, 1));
}
int32_t allocate(size_t bytes, void** memory) {
  if (const int32_t error = allocate_raw(bytes, memory); error != cudaSuccess) return error;
  cudaError_t error = cudaMemset(*memory, 0, std::max<size_t>(bytes, 1));
  // Streams of create_stream do not wait for the default stream, so the zeros must be there before
  // the caller gets the memory.
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  if (error == cudaSuccess) return cudaSuccess;
  (void)cudaFree(*memory);
  *memory = nullptr;
  return error;
}
int32_t release(void* memory) {
  return cudaFree(memory);
}

int32_t memory_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  size_t left = 0, total = 0;
  const cudaError_t error = cudaMemGetInfo(&left, &total);
  *free_bytes = left;
  *total_bytes = total;
  return error;
}

int32_t allocate_pinned(size_t bytes, void** memory) {
  *memory = nullptr;
  const size_t taken = std::max<size_t>(bytes, 1);
  const cudaError_t error =
      cudaHostAlloc(memory, taken, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error == cudaSuccess) std::memset(*memory, 0, taken);
  return error;
}
int32_t release_pinned(void* memory) {
  return cudaFreeHost(memory);
}

int32_t register_host(void* memory, size_t bytes, void** device_memory) {
  const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable;
  if (const cudaError_t error = cudaHostRegister(memory, bytes, flags); error != cudaSuccess)
    return error;
  const cudaError_t error = cudaHostGetDevicePointer(device_memory, memory, 0);
  if (error != cudaSuccess) (void)cudaHostUnregister(memory);
  return error;
}
int32_t unregister_host(void* memory) {
  return cudaHostUnregister(memory);
}

int32_t create_stream(void** stream) {
  return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
}
int32_t destroy_stream(void* stream) {
  return cudaStreamDestroy(as_stream(stream));
}
int32_t create_event(void** event) {
  return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
}
int32_t destroy_event(void* event) {
  return cudaEventDestroy(as_event(event));
}
int32_t record_event(void* event, void* stream) {
  return cudaEventRecord(as_event(event), as_stream(stream));
}
int32_t query_event(void* event, int32_t* done) {
  const cudaError_t error = cudaEventQuery(as_event(event));
  *done = error == cudaSuccess ? 1 : 0;
  if (error != cudaErrorNotReady) return error;
  (void)cudaGetLastError();  // clear it: it is not an error, and a later call must not report it
  return cudaSuccess;
}
int32_t copy(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream));
}

int64_t launches() {
  return launched.load(std::memory_order_relaxed);
}

int32_t export_memory(void* memory, uint8_t handle[kShoalIpcHandleBytes]) {
  cudaIpcMemHandle_t made;
  const cudaError_t error = cudaIpcGetMemHandle(&made, memory);
  if (error == cudaSuccess) std::memcpy(handle, &made, sizeof made);
  return error;
}
int32_t import_memory(const uint8_t handle[kShoalIpcHandleBytes], void** memory) {
  cudaIpcMemHandle_t theirs;
  std::memcpy(&theirs, handle, sizeof theirs);
  return cudaIpcOpenMemHandle(memory, theirs, cudaIpcMemLazyEnablePeerAccess);
}
int32_t close_memory(void* memory) {
  return cudaIpcCloseMemHandle(memory);
}

// In the order of the table's fields, because C++17 has no designated initialisers.
constexpr ShoalCudaModule kModule{
    sizeof(ShoalCudaModule),
    SHOAL_BUILD_ID,
    CUDART_VERSION,
    SHOAL_CUDA_ARCHITECTURES,
    error_text,
    facts,
    try_peer,
    select,
    load_kernels,
    allocate,
    allocate_raw,
    release,
    memory_info,
    allocate_pinned,
    release_pinned,
    register_host,
    unregister_host,
    create_stream,
    destroy_stream,
    create_event,
    destroy_event,
    record_event,
    query_event,
    copy,
    tree_sum,
    export_memory,
    import_memory,
    close_memory,
    push_floats,
    push_all_reduce,
    product,
    product_with,
    product_shapes,
    embed,
    rms_norm,
    silu_mul,
    add_norm,
    argmax,
    qkv,
    attention,
    attention_with,
    attention_ways,
    attention_scratch_floats,
    capability,
    launches,
    multiply_tiles,
    operate,
};

}  // namespace
}  // namespace shoal::cuda

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  return &shoal::cuda::kModule;
}
