// A FAKE of libshoal_cuda.so: the stand-in of tests/fakes, with the real kernels of communicators,
// which run in threads of the host.
#include "kernels/cuda/entries.h"

/// The entry point of the stand-in, under another name in this library.
extern "C" const ShoalCudaModule* fake_cuda_module();

extern "C" __attribute__((visibility("default"))) const ShoalCudaModule* shoal_cuda_module() {
  static const ShoalCudaModule module = [] {
    ShoalCudaModule table = *fake_cuda_module();
    table.tree_sum = shoal::cuda::tree_sum;
    table.push_floats = shoal::cuda::push_floats;
    table.push_all_reduce = shoal::cuda::push_all_reduce;
    return table;
  }();
  return &module;
}
