// The entry of the emulated libshoal_cuda.so: the module's own table. A test may ask for a module
// of another build, which must be refused, by EMULATED_GPU_BUILD_ID.
#include <cstdlib>

#include "runtime/device/cuda_module.h"

/// The module's entry, under another name in this library.
extern "C" const ShoalCudaModule* table_of_module();

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  static const ShoalCudaModule table = [] {
    ShoalCudaModule own = *table_of_module();
    if (const char* other = std::getenv("EMULATED_GPU_BUILD_ID")) own.build_id = other;
    return own;
  }();
  return &table;
}
