#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/packed_matrix.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "runtime/base/thread_pool.h"

namespace shoal {

/// One rank's part of a decoder layer, on the CPU or on a device. An empty vector means that the
/// model does not have it.
template <typename Matrix, typename Vector>
struct LayerWeightsOf {
  Vector input_norm;           ///< [hidden]
  Vector post_attention_norm;  ///< [hidden]
  Matrix qkv;                  ///< [(q + 2 kv heads) * head_dim, hidden], column-parallel
  Vector qkv_bias;
  Vector q_norm, k_norm;  ///< [head_dim]
  Matrix o;               ///< [hidden, q heads * head_dim], row-parallel
  Vector o_bias;          ///< [hidden], added once to the sum
  Matrix gate_up;         ///< [2 * mlp columns, hidden], column-parallel: gate rows, then up rows
  Vector gate_up_bias;
  Matrix down;  ///< [hidden, mlp columns], row-parallel
  Vector down_bias;
};

template <typename Matrix, typename Vector, typename Table>
struct WeightsOf {
  using Layer = LayerWeightsOf<Matrix, Vector>;
  Table embedding;  ///< [vocab, hidden]
  std::vector<Layer> layers;
  Vector final_norm;
  Matrix lm_head;  ///< [vocab of this rank, hidden]; empty if the rank has none
};

using LayerWeights = LayerWeightsOf<PackedMatrix, std::vector<float>>;

/// One rank's weights on the CPU. Vectors are widened to float32, which keeps their values. The
/// embedding table is not copied: it stays in the mapped checkpoint, in the checkpoint's dtype.
struct Weights : WeightsOf<PackedMatrix, std::vector<float>, TensorView> {
  Dtype dtype = Dtype::kBf16;
  int64_t packed_bytes = 0;
  /// The checksum (WeightSum) of the packed matrices and vectors. Each rank maps the whole
  /// embedding, and adds its part of the rows.
  uint64_t sum = 0;
};

/// Receives the bytes of the checkpoint that this rank has read so far, and the bytes that it will
/// read in all.
using LoadCallback = std::function<void(int64_t done, int64_t total)>;

/// The type that the products are computed in: the type of the checkpoint's matrices (asked ==
/// nullopt), or the one that was asked for. FAILED_PRECONDITION: a change between float16 and
/// bfloat16, which would lose range or precision.
Result<Dtype> resolve_dtype(const Checkpoint& checkpoint, std::optional<Dtype> asked);

/// Reads the rank's slices and packs them. dtype is the result of resolve_dtype, and the kernels
/// are used for the checksum. Errors name the tensor.
Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                             const ShardPlan& plan, Dtype dtype, ThreadPool& pool,
                             const KernelTable& kernels, const LoadCallback& progress);

/// Computes, without reading the checkpoint, how many bytes load_weights will allocate on this
/// rank.
int64_t packed_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype);

}  // namespace shoal
