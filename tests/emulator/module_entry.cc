// The entry of the emulated libshoal_cuda.so: the module's own table. A test may ask for a module
// of another build, which must be refused, by EMULATED_GPU_BUILD_ID, and for a push that is left
// out.
#include <cstdlib>
#include <unistd.h>

#include "runtime/device/cuda_module.h"
#include "tests/emulator/for_libraries.h"
#include "tests/emulator/settings.h"

/// The module's entry, under another name in this library.
extern "C" const ShoalCudaModule* table_of_module();

namespace {

int32_t push_unless_left_out(const ShoalPushAllReduce* args, void* stream) {
  return emulated_leaves_out() ? 0 : table_of_module()->push_all_reduce(args, stream);
}

}  // namespace

bool emulated_leaves_out() {
  const std::string& path = shoal::emulator::settings().leave_out;
  return shoal::emulator::holds_number(path, emulated_selected_device()) &&
         ::unlink(path.c_str()) == 0;
}

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  static const ShoalCudaModule table = [] {
    ShoalCudaModule own = *table_of_module();
    own.push_all_reduce = push_unless_left_out;
    if (const char* other = std::getenv("EMULATED_GPU_BUILD_ID")) own.build_id = other;
    return own;
  }();
  return &table;
}
