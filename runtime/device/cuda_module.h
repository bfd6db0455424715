#pragma once
#include <cstddef>
#include <cstdint>

// The boundary between the base program, which has no CUDA symbol, and libshoal_cuda.so, opened at
// run time. Plain C, so that the two may be built by different compilers. A test's stand-in offers
// the same table over host memory (tests/fakes).
//
// Functions return 0 or a cudaError_t; error_text says it in CUDA's own words. Unless said
// otherwise they act on the device that the calling thread has selected, and a stream is a
// cudaStream_t (never the default one).

extern "C" {

/// Most ranks of a group on devices, and most values of one tree sum.
enum { kShoalMostRanks = 16, kShoalMostPlanes = 32, kShoalIpcHandleBytes = 64 };

/// A FoldProgram (runtime/base/reduce_tree.h) and what it is applied to: push planes[0], fold
/// merges[0] times, ...
struct ShoalTreeSum {
  int32_t values;
  uint8_t merges[kShoalMostPlanes];
  const float* planes[kShoalMostPlanes];  ///< each [count]; memory that the device can read, mapped
                                          ///< host memory too
  float* out;                             ///< [count]; overlaps no plane
  int64_t count;
};

/// One all_reduce over peer memory, the push kind: every rank writes its planes into every peer's
/// area, then sums what came into its own. An area (area_bytes of it, zeroed before first use) is
/// device memory of its rank, mapped by all.
struct ShoalPushAllReduce {
  int32_t rank;
  int32_t world_size;
  int32_t contributions[kShoalMostRanks];  ///< planes of each rank, in rank order; their sum is
                                           ///< sum.values
  void* areas[kShoalMostRanks];  ///< of every rank as mapped here; areas[rank] is this rank's own
  int64_t area_bytes;
  const float* own;  ///< [contributions[rank]][pitch]
  int64_t pitch;     ///< floats from one plane of own to the next
  ShoalTreeSum
      sum;  ///< planes is ignored; count floats are reduced, at most push_floats(...) of them
  uint64_t spin_ns;   ///< how long a kernel waits for a peer
  uint32_t* failure;  ///< mapped host memory: 0, or 1 + the rank that did not come; once set, later
                      ///< kernels return at once
};

/// What the module offers. A reader checks struct_bytes before it touches anything else.
struct ShoalCudaModule {
  uint32_t struct_bytes;
  const char* build_id;          ///< SHOAL_BUILD_ID of its build; another one is refused
  int32_t cuda_runtime_version;  ///< cudart the module was linked with, e.g. 13000
  const char* architectures;     ///< compiled for, e.g. "75-virtual 80-real 90-real"

  const char* (*error_text)(
      int32_t error);  ///< "cudaErrorNoDevice: no CUDA-capable device is detected"

  /// Devices, versions and peers as JSON text, cut to text_bytes: {"driver_version": 13000,
  /// "runtime_version": 13000, "devices": [{"name", "pci_bus_id", "uuid", "compute_capability":
  /// "9.0", "total_bytes"}], "can_access_peer": [[]]}. Creates no context. A driver that is missing
  /// or too old is an error.
  int32_t (*facts)(char* text, size_t text_bytes);
  /// A pattern of `bytes` written from device `from` into the memory of `to` (push) and read from
  /// there (pull), compared on the host. 0 and *wrong_bytes == 0: peer access works. Creates
  /// contexts on both and may hang: call it in a process of its own.
  int32_t (*try_peer)(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes);

  int32_t (*select)(
      int32_t device);  ///< for the calling thread; makes the device's primary context
  int32_t (*allocate)(size_t bytes, void** memory);  ///< of the device, zeroed
  int32_t (*release)(void* memory);
  int32_t (*allocate_pinned)(size_t bytes,
                             void** memory);  ///< host memory that the device reads and writes too
  int32_t (*release_pinned)(void* memory);
  /// Memory mapped by this process (a memfd) for the device; *device_memory is what kernels use.
  int32_t (*register_host)(void* memory, size_t bytes, void** device_memory);
  int32_t (*unregister_host)(void* memory);

  int32_t (*create_stream)(void** stream);
  int32_t (*destroy_stream)(void* stream);
  int32_t (*create_event)(void** event);
  int32_t (*destroy_event)(void* event);
  int32_t (*record_event)(void* event, void* stream);
  int32_t (*query_event)(
      void* event, int32_t* done);  ///< *done 1: all before it has run; an error: the device failed
  int32_t (*copy)(void* to, const void* from, size_t bytes,
                  void* stream);  ///< any two of host (pinned) and device

  int32_t (*tree_sum)(const ShoalTreeSum* sum, void* stream);

  int32_t (*export_memory)(
      void* memory, uint8_t handle[kShoalIpcHandleBytes]);  ///< of allocate, for another process
  int32_t (*import_memory)(const uint8_t handle[kShoalIpcHandleBytes], void** memory);
  int32_t (*close_memory)(void* memory);
  int64_t (*push_floats)(int64_t area_bytes, int32_t world_size,
                         int32_t most_contributions);  ///< of one call
  int32_t (*push_all_reduce)(const ShoalPushAllReduce* args, void* stream);
};

/// The module's one exported symbol, "shoal_cuda_module". The result lives as long as the process.
const ShoalCudaModule* shoal_cuda_module();
using ShoalCudaModuleFunction = const ShoalCudaModule* (*)();
}
