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
  std::vector<SequenceRows> sequences;  ///< cover the rows; their block tables must outlive the
                                        ///< call
  std::vector<int32_t> logit_rows;      ///< the rows whose logits are wanted, ascending
};

/// Runs one rank's forward pass over its shard. Make one call at a time; the pool's threads share
/// the work of each call.
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
  /// Allocates the activations of max_rows rows and touches them, so that missing memory is
  /// reported here and not in the middle of a request. RESOURCE_EXHAUSTED if the memory is refused.
  /// The parts must outlive the decoder.
  static Result<std::unique_ptr<Decoder>> create(const Parts& parts, int max_rows);

  /// Runs the rows through every layer. K and V are written to the cache (one KvLayer per layer).
  /// The logits of logit_rows are written to logits [logit_rows, plan.vocab.size()], which is this
  /// rank's part of the vocabulary. Returns the communicator's errors.
  Status forward(const DecoderBatch& batch, const std::vector<KvLayer>& cache, float* logits);

  /// Sets a function that is called after every part of a layer (each product, the attention, each
  /// sum over the ranks), as a sign of life. If it returns an error, the pass ends with that error.
  void set_after_part(std::function<Status()> after_part) { after_part_ = std::move(after_part); }

  /// The bytes of activations that create() allocates for max_rows rows.
  static int64_t activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                  int max_rows);
  ~Decoder();

 private:
  struct Buffers;
  Decoder(const Parts& parts, int max_rows);

  void rotary_angles(const DecoderBatch& batch);
  void normalize(const float* weight, int64_t rows);
  Status multiply(const PackedMatrix& w, const void* x, int64_t x_stride, int64_t rows, float* y);
  Status attention_block(const DecoderBatch& batch, int layer, const KvLayer& cache);
  Status attend(const DecoderBatch& batch, int window, const KvLayer& cache);
  Status mlp_block(int64_t rows, int layer);
  Status reduce_into_residual(const ReducePlan& plan, const std::vector<float>& bias, int64_t rows);

  /// A part of a layer has ended.
  Status moved() const { return after_part_ ? after_part_() : Status(); }

  /// Runs body(begin, end) over the rows, on the whole team only if there is enough work to share.
  template <typename Body>
  void over_rows(int64_t rows, const Body& body);

  const Parts parts_;
  const int max_rows_;
  const Dtype activation_;
  std::vector<float> inv_freq_;
  float attention_factor_ = 1;
  AlignedBuffer memory_;
  std::function<Status()> after_part_;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace shoal
