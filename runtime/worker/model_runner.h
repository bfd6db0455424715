#pragma once
#include <functional>
#include <memory>

#include "models/decoder.h"
#include "models/safetensors.h"
#include "runtime/control/messages.h"
#include "runtime/worker/kv_cache.h"

namespace shoal {

/// One rank's model: weights, KV cache, forward pass, and on rank 0 the choice of tokens. One
/// thread calls it.
class ModelRunner {
 public:
  /// Loads the rank's shard. Errors name file and tensor, or the memory that was refused.
  static Result<std::unique_ptr<ModelRunner>> load(
      const WorkerInit& init, const std::function<void(const LoadProgress&)>& progress);

  /// Before the first run(), which is the first to use the communicator. Takes the memory of a
  /// step's activations: RESOURCE_EXHAUSTED when it is refused.
  Status connect(std::unique_ptr<Communicator> communicator);

  /// Decoder::set_after_layer, once connected.
  void set_after_layer(std::function<Status()> after_layer) {
    decoder_->set_after_layer(std::move(after_layer));
  }

  /// Runs a step. The result is complete on rank 0 and empty elsewhere. Errors: the communicator's;
  /// INTERNAL for a plan beyond the limits of WorkerInit.
  Result<StepResult> run(const StepPlan& plan);

  const Communicator* communicator() const { return communicator_.get(); }

  int64_t weight_bytes() const { return weights_.packed_bytes; }
  int64_t kv_bytes() const { return cache_.size_bytes(); }
  const char* kernels_name() const { return kernels_->name; }
  ~ModelRunner();

 private:
  /// Which logit row belongs to which sequence, and what is wanted of it.
  struct Wanted {
    const SequenceStep* sequence;
    int row_begin;  ///< in DecoderBatch::logit_rows
    int rows;
  };

  ModelRunner();
  Status build_batch(const StepPlan& plan);
  Status collect(StepResult* result);
  Status gather_best();  ///< fills best_ on rank 0: the greedy choices, in order
  Status gather_rows();  ///< fills rows_ on rank 0: whole rows of logits, where more than the best
                         ///< is wanted

  ModelConfig config_;
  ShardPlan plan_;
  std::unique_ptr<Checkpoint> checkpoint_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  Weights weights_;
  KvCache cache_;
  int max_rows_ = 0;
  int kv_blocks_ = 0;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Decoder> decoder_;
  DecoderBatch batch_;
  std::vector<Wanted> wanted_;
  std::vector<float> logits_;    // [logit rows, vocabulary of this rank]
  std::vector<float> gathered_;  // rank 0: every rank's logits_, rank after rank
  std::vector<float> rows_;      // rank 0: [gathered rows, vocabulary]
  std::vector<int32_t> best_;
};

}  // namespace shoal
