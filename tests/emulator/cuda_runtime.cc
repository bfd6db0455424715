#include "tests/emulator/cuda_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "tests/emulator/block_memory.h"
#include "tests/emulator/for_libraries.h"
#include "tests/emulator/loading.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/settings.h"
#include "tests/emulator/stream.h"

namespace em = shoal::emulator;

struct EmulatedStream {
  std::shared_ptr<em::Stream> stream;
};
struct EmulatedEvent {
  em::Event event;
};
struct EmulatedGraph {
  std::vector<em::Operation> operations;
};

namespace {

thread_local int selected = -1;  // a device, whatever its number
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
cudaError_t failed(int32_t error) {
  return failed(static_cast<cudaError_t>(error));
}

constexpr auto device_of = [](int number) { return em::settings().device_of(number); };

/// As in CUDA, a thread that has selected no device uses the first.
int this_device() {
  return selected < 0 ? std::max(device_of(0), 0) : selected;
}

/// The error that the test asks this function to return. After a report, every call fails, because
/// the device has.
cudaError_t planned(const char* function) {
  if (const int error = em::planned_error(function, this_device()); error != 0)
    return failed(error);
  return em::first_report().empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}
#define RETURN_IF_PLANNED() \
  if (const cudaError_t error_ = planned(__func__); error_ != cudaSuccess) return error_

std::shared_ptr<em::Stream> stream_of(cudaStream_t stream) {
  return stream == nullptr ? em::default_stream(this_device()) : stream->stream;
}

em::Operation copy_of(void* to, const void* from, size_t bytes) {
  return [=] {
    const bool is_word = bytes == 4 && (uintptr_t(to) | uintptr_t(from)) % 4 == 0;
    if (is_word)  // it arrives whole: a host that looks at it sees the old or the new one
      __atomic_store_n(static_cast<int*>(to), *static_cast<const int*>(from), __ATOMIC_RELAXED);
    else
      std::memcpy(to, from, bytes);
    em::mark_written(to, bytes);
  };
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorPeerAccessUnsupported:
      return "cudaErrorPeerAccessUnsupported";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  thread_local std::string text;
  switch (static_cast<int>(error)) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchFailure:
      text = em::first_report();
      text = "unspecified launch failure" + (text.empty() ? "" : " (emulated GPU: " + text + ")");
      return text.c_str();
    default:
      return "unknown error";
  }
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  RETURN_IF_PLANNED();
  *count = static_cast<int>(em::settings().numbers.size());
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  RETURN_IF_PLANNED();
  *version = em::settings().driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  RETURN_IF_PLANNED();
  const int device = device_of(number);
  if (device < 0) return failed(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Emulated GPU");
  std::memcpy(properties->uuid.bytes, "emulated GPU", 12);
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = em::settings().bytes;
  const em::Capability capability = em::settings().capabilities[static_cast<size_t>(device)];
  properties->major = capability.major;
  properties->minor = capability.minor;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int number) {
  RETURN_IF_PLANNED();
  const int device = device_of(number);
  if (device < 0) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", 16 + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  RETURN_IF_PLANNED();
  *can = device != peer && em::settings().peers ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  RETURN_IF_PLANNED();
  if (device_of(peer) < 0) return failed(cudaErrorInvalidDevice);
  return em::settings().peers ? cudaSuccess : failed(cudaErrorPeerAccessUnsupported);
}

cudaError_t cudaSetDevice(int number) {
  RETURN_IF_PLANNED();
  if (em::settings().numbers.empty()) return failed(cudaErrorNoDevice);
  if (device_of(number) < 0) return failed(cudaErrorInvalidDevice);
  selected = device_of(number);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  RETURN_IF_PLANNED();
  em::wait_for_all_streams();
  return em::first_report().empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  RETURN_IF_PLANNED();
  *left = em::free_bytes(this_device());
  *total = em::settings().bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  RETURN_IF_PLANNED();
  return failed(em::allocate_on_device(this_device(), bytes, memory));
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  em::wait_for_all_streams();
  return failed(em::release_on_device(memory));
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  RETURN_IF_PLANNED();
  return failed(em::allocate_pinned_memory(bytes, memory));
}

cudaError_t cudaFreeHost(void* memory) {
  em::wait_for_all_streams();
  return failed(em::release_pinned_memory(memory));
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  RETURN_IF_PLANNED();
  return failed(em::register_memory(memory, bytes));
}

cudaError_t cudaHostUnregister(void* memory) {
  em::wait_for_all_streams();
  return failed(em::unregister_memory(memory));
}

cudaError_t cudaHostGetDevicePointer(void** device_memory, void* memory, unsigned) {
  RETURN_IF_PLANNED();
  *device_memory = memory;
  return em::piece_of(memory) != nullptr ? cudaSuccess : failed(cudaErrorInvalidValue);
}

cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  RETURN_IF_PLANNED();
  if (!em::fits(memory, bytes)) return failed(cudaErrorInvalidValue);
  em::default_stream(this_device())->enqueue([=] {
    std::memset(memory, value, bytes);
    em::mark_written(memory, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  RETURN_IF_PLANNED();
  if (!em::fits(to, bytes) || !em::fits(from, bytes)) return failed(cudaErrorInvalidValue);
  em::wait_for_all_streams();
  copy_of(to, from, bytes)();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  RETURN_IF_PLANNED();
  if (!em::fits(to, bytes) || !em::fits(from, bytes)) return failed(cudaErrorInvalidValue);
  // CUDA takes such memory through a buffer of its own, and the caller waits. Nothing here may.
  if (const bool source = em::piece_of(from) == nullptr; source || em::piece_of(to) == nullptr) {
    const char* const way = source ? " B from it" : " B to it";
    em::keep_report(em::Fault::kPageable, {}, std::to_string(bytes) + way);
    return failed(cudaErrorInvalidValue);
  }
  stream_of(stream)->enqueue(copy_of(to, from, bytes));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  RETURN_IF_PLANNED();
  *stream = new EmulatedStream{em::Stream::make(this_device())};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  stream->stream->close();
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RETURN_IF_PLANNED();
  if (stream_of(stream)->is_captured()) return failed(cudaErrorStreamCaptureUnsupported);
  stream_of(stream)->wait_for_all();
  return em::first_report().empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  RETURN_IF_PLANNED();
  *event = new EmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RETURN_IF_PLANNED();
  const std::shared_ptr<em::Stream> in = stream_of(stream);
  if (in->is_captured()) return failed(cudaErrorStreamCaptureUnsupported);
  event->event = {in, in->enqueued()};
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  RETURN_IF_PLANNED();
  if (event->event.stream == nullptr) return cudaSuccess;  // nothing was recorded
  if (!event->event.stream->has_done(event->event.ticket)) return failed(cudaErrorNotReady);
  return em::first_report().empty() ? cudaSuccess : failed(cudaErrorLaunchFailure);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  RETURN_IF_PLANNED();
  return failed(em::export_piece(memory, reinterpret_cast<unsigned char*>(handle)));
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  RETURN_IF_PLANNED();
  return failed(em::import_piece(reinterpret_cast<const unsigned char*>(&handle), memory));
}

cudaError_t cudaIpcCloseMemHandle(void* memory) {
  return cudaFree(memory);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  RETURN_IF_PLANNED();
  if (stream == nullptr || stream->stream->is_captured()) return failed(cudaErrorIllegalState);
  stream->stream->begin_capture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  RETURN_IF_PLANNED();
  std::optional<std::vector<em::Operation>> kept = stream->stream->end_capture();
  if (!kept.has_value()) return failed(cudaErrorIllegalState);
  *graph = new EmulatedGraph{std::move(*kept)};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* replay, cudaGraph_t graph, uint64_t) {
  RETURN_IF_PLANNED();
  *replay = new EmulatedGraph(*graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t replay, cudaStream_t stream) {
  RETURN_IF_PLANNED();
  for (const em::Operation& operation : replay->operations) stream_of(stream)->enqueue(operation);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t replay) {
  delete replay;
  return cudaSuccess;
}

namespace shoal::emulator {
cudaError_t allow_block_memory(const void* kernel, size_t bytes) {
  await_compiler();
  return raise_block_memory(this_device(), kernel, bytes) ? cudaSuccess
                                                          : failed(cudaErrorInvalidValue);
}

cudaError_t launch(const LaunchShape& shape, std::function<void()> body, cudaStream_t stream) {
  if (const cudaError_t error = planned("cudaLaunchKernel"); error != cudaSuccess) return error;
  if (shape.threads < 1 || shape.threads > 1024 || shape.memory > kMostBlockMemory ||
      shape.grid.x < 1 || shape.grid.y < 1 || shape.grid.z < 1 || shape.grid.y > 65535 ||
      shape.grid.z > 65535)
    return failed(cudaErrorInvalidConfiguration);
  const std::shared_ptr<Stream> in = stream_of(stream);
  if (!may_have_block_memory(in->device(), shape.kernel, shape.memory))
    return failed(cudaErrorInvalidValue);
  note_launch(shape.kernel);
  in->enqueue([shape, body = std::move(body)] {
    hang_if_planned(running_device);
    run_lanes(running_device, shape, body);
  });
  return cudaSuccess;
}

}  // namespace shoal::emulator

int32_t emulated_selected_device() {
  return selected;
}

void emulated_enqueue(void* stream, void* out, size_t bytes, void (*work)(void*), void* context) {
  stream_of(static_cast<cudaStream_t>(stream))->enqueue([=] {
    work(context);
    em::mark_written(out, bytes);
  });
}
