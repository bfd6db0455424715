#pragma once
#include <cstddef>
#include <cstdint>

// What the stand-ins of NCCL and cuBLASLt, which are libraries of their own, find by name in the
// emulated module.

#define EMULATOR_API extern "C" __attribute__((visibility("default")))

/// The calling thread's device. -1: it has selected none.
EMULATOR_API int32_t emulated_selected_device();

/// Whether the calling thread's device leaves out the collective that it begins now
/// (EMULATED_GPU_LEAVE_OUT).
EMULATOR_API bool emulated_leaves_out();

/// Enqueues work(context), which writes these bytes of the device.
EMULATOR_API void emulated_enqueue(void* stream, void* out, size_t bytes, void (*work)(void*),
                                   void* context);
