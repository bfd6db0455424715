#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda_ops.h"

// The boundary between the base program, which has no CUDA symbol, and libshoal_cuda.so, which is
// opened at run time. It is plain C, so that the two may be built by different compilers.
// tests/emulator runs the same kernels on the host.
//
// Functions return 0 or a cudaError_t, for which error_text gives CUDA's own message. Unless noted
// otherwise they act on the device that the calling thread has selected, and a stream is a
// cudaStream_t (never the default one).

extern "C" {

/// The most ranks of a group on devices, the most values of one tree sum, and the bytes of a handle
/// for memory of another process.
enum { kShoalMostRanks = 16, kShoalMostPlanes = 32, kShoalIpcHandleBytes = 64 };
/// What ShoalPushAllReduce::failure adds to the number of a rank that is in another collective.
enum { kShoalOtherMark = 1 << 16 };
/// The words of ShoalPushAllReduce::name.
enum { kShoalNameWords = 4 };

/// A FoldProgram (runtime/base/reduce_tree.h) and the planes it is applied to: push planes[0], fold
/// merges[0] times, and so on.
struct ShoalTreeSum {
  int32_t values;
  uint8_t merges[kShoalMostPlanes];
  /// Each [count], in memory that the device can read, which includes mapped host memory.
  const float* planes[kShoalMostPlanes];
  float* out;  ///< [count]; must not overlap a plane
  int64_t count;
};

/// One all_reduce over peer memory, done by pushing: every rank writes its planes into every peer's
/// area, then sums what has arrived in its own. An area is area_bytes of its rank's device memory,
/// mapped by all ranks and zeroed before the first use.
struct ShoalPushAllReduce {
  int32_t rank;
  int32_t world_size;
  /// The number of planes of each rank, in rank order; their sum is sum.values.
  int32_t contributions[kShoalMostRanks];
  /// The area of each rank, as mapped in this process; areas[rank] is this rank's own.
  void* areas[kShoalMostRanks];
  int64_t area_bytes;
  const float* own;  ///< [contributions[rank]][pitch]
  int64_t pitch;     ///< floats from one plane of own to the next
  /// sum.planes is ignored. sum.count floats are reduced, at most push_floats(...) of them.
  ShoalTreeSum sum;
  uint64_t spin_ns;  ///< how long a kernel waits for a peer
  /// Identifies the collective. All ranks must pass the same value. The kernels compare it, and sum
  /// nothing if a peer's differs.
  uint16_t mark;
  /// The host's name for the collective. A push that fails copies the name, so that the host can
  /// tell which collective failed even after it has enqueued others behind it.
  uint32_t name[kShoalNameWords];
  /// [1 + kShoalNameWords] in mapped host memory. The first word is 0, or 1 + the rank that did not
  /// come in time, plus kShoalOtherMark if it came with another mark. Once it is set, later kernels
  /// return at once. The others are the name of the push that set it, and are written before.
  uint32_t* failure;
};

/// What the module offers. A caller checks struct_bytes before it reads anything else.
struct ShoalCudaModule {
  uint32_t struct_bytes;
  const char* build_id;  ///< SHOAL_BUILD_ID of its build; a module of another build is refused
  int32_t cuda_runtime_version;  ///< cudart the module was linked with, e.g. 13000
  const char* architectures;     ///< what it was compiled for, e.g. "80-virtual 80-real 90-real
                                 ///< 100-real 120-real"

  /// An error as text, e.g. "cudaErrorNoDevice: no CUDA-capable device is detected".
  const char* (*error_text)(int32_t error);

  /// Writes devices, versions and peers into `text` as JSON, cut off at text_bytes:
  /// {"driver_version": 13000, "runtime_version": 13000, "devices": [{"name", "pci_bus_id", "uuid",
  /// "compute_capability": "9.0", "total_bytes"}], "can_access_peer": [[]]}. Creates no context. A
  /// driver that is missing or too old is an error.
  int32_t (*facts)(char* text, size_t text_bytes);
  /// Writes a pattern of `bytes` bytes from device `from` into the memory of `to` (push), reads it
  /// from there (pull) and compares it on the host. 0 and *wrong_bytes == 0: peer access works. It
  /// creates contexts on both devices and may hang, so call it in a process of its own.
  int32_t (*try_peer)(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes);

  /// Selects the device for the calling thread, and makes its primary context.
  int32_t (*select)(int32_t device);
  /// Loads every kernel into the context of the selected device, and launches none. Otherwise CUDA
  /// loads a kernel at its first launch, which may then have to wait for the device
  /// (models/device_shapes.h says what a first launch is still needed for). If the module has only
  /// virtual code for the device, the driver compiles it here, which takes minutes the first time.
  /// Error 209 (no kernel image): the module is not compiled for this device. Call it before any
  /// launch.
  int32_t (*load_kernels)();
  int32_t (*allocate)(size_t bytes, void** memory);      ///< device memory, zeroed
  int32_t (*allocate_raw)(size_t bytes, void** memory);  ///< the same, with anything in it
  int32_t (*release)(void* memory);
  /// The bytes of the device's memory that are free, and all of them.
  int32_t (*memory_info)(uint64_t* free_bytes, uint64_t* total_bytes);
  /// Host memory that the device can read and write too.
  int32_t (*allocate_pinned)(size_t bytes, void** memory);
  int32_t (*release_pinned)(void* memory);
  /// Gives the device access to memory that this process has mapped (a memfd). Kernels use
  /// *device_memory.
  int32_t (*register_host)(void* memory, size_t bytes, void** device_memory);
  int32_t (*unregister_host)(void* memory);

  int32_t (*create_stream)(void** stream);
  int32_t (*destroy_stream)(void* stream);
  int32_t (*create_event)(void** event);
  int32_t (*destroy_event)(void* event);
  int32_t (*record_event)(void* event, void* stream);
  /// *done is 1 if everything before the event has run. An error: the device failed.
  int32_t (*query_event)(void* event, int32_t* done);
  /// Copies between any two of host memory (pinned) and device memory.
  int32_t (*copy)(void* to, const void* from, size_t bytes, void* stream);

  int32_t (*tree_sum)(const ShoalTreeSum* sum, void* stream);

  /// A handle with which another process can import memory that allocate() made.
  int32_t (*export_memory)(void* memory, uint8_t handle[kShoalIpcHandleBytes]);
  int32_t (*import_memory)(const uint8_t handle[kShoalIpcHandleBytes], void** memory);
  int32_t (*close_memory)(void* memory);
  /// The most floats that one call of push_all_reduce can reduce.
  int64_t (*push_floats)(int64_t area_bytes, int32_t world_size, int32_t most_contributions);
  int32_t (*push_all_reduce)(const ShoalPushAllReduce* args, void* stream);

  int32_t (*product)(const ShoalProduct* args, void* stream);
  /// The same in one of product_shapes() shapes, which product chooses from. All give equal bits.
  int32_t (*product_with)(const ShoalProduct* args, int32_t shape, void* stream);
  int32_t (*product_shapes)();

  // The ops of a layer. Each only enqueues, and its struct says what it computes. Arguments that
  // make no sense are cudaErrorInvalidValue.
  int32_t (*embed)(const ShoalEmbed* args, void* stream);
  int32_t (*rms_norm)(const ShoalRmsNorm* args, void* stream);
  int32_t (*silu_mul)(const ShoalSiluMul* args, void* stream);
  int32_t (*add_norm)(const ShoalAddNorm* args, void* stream);
  int32_t (*argmax)(const ShoalArgmax* args, void* stream);
  int32_t (*qkv)(const ShoalQkv* args, void* stream);
  int32_t (*attention)(const ShoalAttention* args, void* stream);
  /// The same in one of attention_ways() ways, which attention chooses from. All give equal bits.
  /// The last two split the chunks.
  int32_t (*attention_with)(const ShoalAttention* args, int32_t way, void* stream);
  int32_t (*attention_ways)();
  /// The floats of ShoalAttention::scratch that splitting needs.
  int64_t (*attention_scratch_floats)(int32_t rows, int32_t heads, int32_t head_dim,
                                      int32_t split_chunks);

  /// A device's compute capability, e.g. 9 and 0.
  int32_t (*capability)(int32_t device, int32_t* major, int32_t* minor);
  /// How many kernels this process has launched.
  int64_t (*launches)();
  // What the device's arithmetic gives, alone.
  int32_t (*multiply_tiles)(const ShoalTiles* args, void* stream);
  int32_t (*operate)(const ShoalOperation* args, void* stream);
};

/// The module's only exported symbol. The table lives as long as the process.
const ShoalCudaModule* shoal_cuda_module();
using ShoalCudaModuleFunction = const ShoalCudaModule* (*)();
}
