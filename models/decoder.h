#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/kernel_table.h"
#include "models/model_config.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/thread_pool.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// The rows of one step: tokens of several sequences, one after the other.
struct DecoderBatch {
  std::vector<int32_t> token_ids;       ///< [rows]
  std::vector<int32_t> positions;       ///< [rows]
  std::vector<SequenceRows> sequences;  ///< cover the rows; their block tables outlive the call
  std::vector<int32_t> logit_rows;      ///< rows whose logits are wanted, ascending
};

/// One rank's forward pass over its shard. One call at a time; the pool's threads share each call's
/// work.
class Decoder {
 public:
  struct Parts {
    const ModelConfig& config;
    const ShardPlan& plan;
    const Weights& weights;
    const KernelTable& kernels;
    ThreadPool& pool;
    Communicator& communicator;
  };
  /// Allocates the activations of max_rows rows and touches them: a page that cannot be had is told
  /// here and not in the middle of a request. RESOURCE_EXHAUSTED when memory is refused. The parts
  /// outlive it.
  static Result<std::unique_ptr<Decoder>> create(const Parts& parts, int max_rows);

  /// Runs the rows through every layer: K and V go to the cache (one KvLayer per layer), and logits
  /// of logit_rows to logits [logit_rows, plan.vocab.size()], this rank's part of the vocabulary.
  /// Errors are the communicator's.
  Status forward(const DecoderBatch& batch, const std::vector<KvLayer>& cache, float* logits);

  /// Called after every layer of a forward pass: a sign of life. An error from it ends the pass.
  void set_after_layer(std::function<Status()> after_layer) {
    after_layer_ = std::move(after_layer);
  }

  /// Bytes of the activations that create() allocates for max_rows rows.
  static int64_t activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                  int max_rows);
  ~Decoder();

 private:
  struct Buffers;
  Decoder(const Parts& parts, int max_rows);

  void rotary_angles(const DecoderBatch& batch);
  void normalize(const float* weight, int64_t rows);
  void multiply(const PackedMatrix& w, const void* x, int64_t x_stride, int64_t rows, float* y);
  Status attention_block(const DecoderBatch& batch, int layer, const KvLayer& cache);
  void attend(const DecoderBatch& batch, int window, const KvLayer& cache);
  Status mlp_block(int64_t rows, int layer);
  Status reduce_into_residual(const ReducePlan& plan, const std::vector<float>& bias, int64_t rows);

  /// Runs body(begin, end) over rows, on the team only where there is enough to share.
  template <typename Body>
  void over_rows(int64_t rows, const Body& body);

  const Parts parts_;
  const int max_rows_;
  const Dtype activation_;
  std::vector<float> inv_freq_;
  float attention_factor_ = 1;
  AlignedBuffer memory_;
  std::function<Status()> after_layer_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace shoal
