#pragma once
// An EMULATION of CUDA's header, for sources that are compiled by the host's compiler: the part of
// CUDA's runtime API that Shoal uses, on memory and threads of the host, and the words of CUDA C++
// that its kernels use. It declares no function of any libm, because a device's would give other
// bits than the host's.
#include <cstddef>
#include <cstdint>

#include "tests/emulator/fragments.h"
#include "tests/emulator/lanes.h"
#include "tests/emulator/memory.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define CUDART_VERSION 13000

// NOLINTBEGIN(bugprone-reserved-identifier): these names are CUDA's

enum cudaError_t : int32_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorIllegalState = 401,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDefault = 4
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                          cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2,
                          cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2,
                          cudaIpcMemLazyEnablePeerAccess = 1;

struct EmulatedStream;
struct EmulatedEvent;
struct EmulatedGraph;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
inline const cudaStream_t cudaStreamLegacy = nullptr;  // the emulator has one default stream
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major;
  int minor;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device);
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* left, size_t* total);
cudaError_t cudaMalloc(void** memory, size_t bytes);
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(memory), bytes);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaHostGetDevicePointer(void** device_memory, void* memory, unsigned flags);
cudaError_t cudaMemset(void* memory, int value, size_t bytes);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory);
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* memory);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* replay, cudaGraph_t graph, uint64_t flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t replay, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t replay);

namespace shoal::emulator {
/// Lets the kernel's blocks have this much memory on the device that the thread has selected.
cudaError_t allow_block_memory(const void* kernel, size_t bytes);
/// Enqueues a kernel, whose lanes each run body.
cudaError_t launch(const LaunchShape& shape, std::function<void()> body, cudaStream_t stream);
}  // namespace shoal::emulator

// What kernels use. A barrier's default arguments are the line that calls it.

#define threadIdx (::shoal::emulator::current_index.thread)
#define blockIdx (::shoal::emulator::current_index.block)
#define blockDim (::shoal::emulator::current_index.block_size)
#define gridDim (::shoal::emulator::current_index.grid)

struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  shoal::emulator::meet_block(0, {file, line});
}
inline int __syncthreads_or(int value, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  return shoal::emulator::meet_block(value, {file, line}) ? 1 : 0;
}
inline void __syncwarp(uint32_t mask = 0xffffffff, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  shoal::emulator::meet_warp(mask, true, nullptr, shoal::emulator::meet_nobody, {file, line});
}
inline void __nanosleep(unsigned) {
  shoal::emulator::let_others_run();
}
template <class T>
T __ldcg(const T* from, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  shoal::emulator::check_not_early({file, line}, "device memory is read");
  shoal::emulator::check_read(from, sizeof(T), {file, line});
  return *from;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return __builtin_sqrtf(a);
}
inline uint32_t __float_as_uint(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
inline float __uint_as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
/// The value of the lane whose number differs in the bits of `apart`. All lanes of a warp take
/// part.
inline float __shfl_xor_sync(uint32_t mask, float value, int apart,
                             const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  shoal::emulator::Exchanged mine{value, apart, 0};
  shoal::emulator::meet_warp(mask, false, &mine, shoal::emulator::exchange, {file, line});
  return mine.got;
}
/// The emulator orders memory by atomics and barriers alone, so fences have nothing to do.
inline void __threadfence() {}
inline void __threadfence_system() {}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_ACQ_REL);
}
// NOLINTEND(bugprone-reserved-identifier)
