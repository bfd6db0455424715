// The entry of the emulated libshoal_cuda.so: the module's own table. A test may ask for a module
// of another build, which must be refused, by EMULATED_GPU_BUILD_ID, for a push that is left out,
// and for pairs of devices that are tried with fewer bytes.
#include <algorithm>
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

int32_t try_peer_with_fewer(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes) {
  const int64_t tried = shoal::emulator::settings().tried;
  return table_of_module()->try_peer(from, to, tried > 0 ? std::min(tried, bytes) : bytes,
                                     wrong_bytes);
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
    own.try_peer = try_peer_with_fewer;
    if (const char* other = std::getenv("EMULATED_GPU_BUILD_ID")) own.build_id = other;
    return own;
  }();
  return &table;
}
