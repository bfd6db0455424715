#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda_module.h"
#include "runtime/device/cuda_ops.h"

/// The parts of the module. Each function is an entry of the table, and
/// runtime/device/cuda_module.h documents it.
namespace shoal::cuda {

int32_t facts(char* text, size_t text_bytes);                                     // facts.cu
int32_t try_peer(int32_t from, int32_t to, int64_t bytes, int64_t* wrong_bytes);  // peer.cu
int32_t tree_sum(const ShoalTreeSum* sum, void* stream);                          // tree_sum.cu
int64_t push_floats(int64_t area_bytes, int32_t world_size,
                    int32_t most_contributions);  // push_all_reduce.cu
int32_t push_all_reduce(const ShoalPushAllReduce* args, void* stream);

/// product.cu: runs the product on the stream, in a shape that suits its number of rows.
int32_t product(const ShoalProduct* args, void* stream);
/// The shape that it takes. A decision of the host: nothing is enqueued.
int32_t product_shape(const ShoalProduct* args);
/// The same in a given one of product_shapes() shapes. All have the same bits.
int32_t product_with(const ShoalProduct* args, int32_t shape, void* stream);
int32_t product_shapes();

// elementwise.cu
int32_t embed(const ShoalEmbed* args, void* stream);
int32_t silu_mul(const ShoalSiluMul* args, void* stream);
int32_t argmax(const ShoalArgmax* args, void* stream);
// norms.cu
int32_t rms_norm(const ShoalRmsNorm* args, void* stream);
int32_t add_norm(const ShoalAddNorm* args, void* stream);
int32_t qkv(const ShoalQkv* args, void* stream);  // qkv.cu

/// attention.cu: divides the work in a way that suits the step.
int32_t attention(const ShoalAttention* args, void* stream);
/// The same in a given one of attention_ways() ways. All have the same bits.
int32_t attention_with(const ShoalAttention* args, int32_t way, void* stream);
int32_t attention_ways();
int64_t attention_scratch_floats(int32_t rows, int32_t heads, int32_t head_dim,
                                 int32_t split_chunks);

// arithmetic.cu
int32_t multiply_tiles(const ShoalTiles* args, void* stream);
int32_t operate(const ShoalOperation* args, void* stream);

/// Load the kernels of a file into the current context: load_kernels of the table calls them all.
int32_t load_tree_sum();
int32_t load_push_all_reduce();
int32_t load_product();
int32_t load_elementwise();
int32_t load_norms();
int32_t load_qkv();
int32_t load_attention();
int32_t load_arithmetic();

}  // namespace shoal::cuda
