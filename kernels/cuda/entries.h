#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda_module.h"

/// The parts of the module. Each function is an entry of the table, and
/// runtime/device/cuda_module.h documents it.
namespace shoal::cuda {

int32_t facts(char* text, size_t text_bytes);                                     // facts.cu
int32_t try_peer(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes);  // peer.cu
int32_t tree_sum(const ShoalTreeSum* sum, void* stream);                          // tree_sum.cu
int64_t push_floats(int64_t area_bytes, int32_t world_size,
                    int32_t most_contributions);  // push_all_reduce.cu
int32_t push_all_reduce(const ShoalPushAllReduce* args, void* stream);

/// Load the kernels of a file into the current context. With lazy loading, the first launch of a
/// kernel may have to wait for the device, while a peer's kernel spins until that very launch.
/// Error 209 (no kernel image): the module is not compiled for this device.
int32_t load_tree_sum();
int32_t load_push_all_reduce();

}  // namespace shoal::cuda
