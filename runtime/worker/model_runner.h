#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "models/decoder.h"
#include "models/safetensors.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/control/messages.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/kv_cache.h"
#include "runtime/worker/logit_rows.h"
#include "runtime/worker/model_work.h"
#include "runtime/worker/sampler.h"

namespace shoal {

/// One rank's model: weights, KV cache, forward pass, and on rank 0 the choice of tokens. Only one
/// thread may call it.
class ModelRunner {
 public:
  /// Loads the rank's shard of the weights. cpus: one for each thread, or empty. Errors name the
  /// file and the tensor, or the memory that was refused. The descriptors of start.checkpoint may
  /// be closed afterwards.
  static Result<std::unique_ptr<ModelRunner>> load(
      const ModelStart& start, World world, const std::vector<int32_t>& cpus,
      const std::function<void(const LoadProgress&)>& progress);

  /// Takes and touches the memory of the KV cache, of a step's activations and of its rows of
  /// logits, so that a page that cannot be had ends the start and not a request. `communicator`
  /// must live as long as the runner. RESOURCE_EXHAUSTED: the memory is refused.
  Status take_memory(Communicator& communicator);

  /// The bytes that take_memory() takes on the plan's rank for this many rows of logits and for
  /// choosing tokens from them.
  static int64_t logit_bytes(const ShardPlan& plan, int64_t rows);

  /// Runs a step of one token on every rank and drops the result, so that what happens only once
  /// (loading pages of the weights and of the code, the transport's first use under load) is done
  /// before a request waits for it. The one position that it writes to the KV cache is written
  /// again before any sequence reads it.
  Status warm_up();

  /// Sets a function that is called after every part of a step: those of Decoder::set_after_part,
  /// and each choice of a token. An error ends the step. Call take_memory() before.
  void set_after_part(std::function<Status()> after_part);

  /// Runs a step. The result is complete on rank 0 and empty elsewhere. Errors: those of the
  /// communicator, and INTERNAL for a plan beyond the limits of ModelStart.
  Result<StepResult> run(const StepPlan& plan);

  int64_t weight_bytes() const { return weights_.packed_bytes; }
  int64_t kv_bytes() const { return cache_.size_bytes(); }
  const char* kernels_name() const { return kernels_->name; }
  ~ModelRunner();

 private:
  /// Which logit rows belong to which sequence.
  struct Wanted {
    const SequenceStep* sequence;
    int row_begin;  ///< in DecoderBatch::logit_rows
    int rows;
  };

  ModelRunner();
  Status build_batch(const StepPlan& plan);
  Status collect(StepResult* result);
  /// Fills best_ on rank 0: the greedy choices, in order.
  Status gather_best();
  /// Brings whole rows of logits to rank 0, for sequences that need more than the best.
  Status gather_rows();
  void take_rows(const Wanted& wanted, int64_t first, StepResult* result);

  ModelConfig config_;
  ShardPlan plan_;
  std::unique_ptr<Checkpoint> checkpoint_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadPool> pool_;
  Weights weights_;
  KvCache cache_;
  Dtype dtype_ = Dtype::kBf16;
  EngineLimits limits_;
  int64_t max_logit_rows_ = 0;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<Decoder> decoder_;
  std::function<Status()> after_part_;
  DecoderBatch batch_;
  std::vector<Wanted> wanted_;
  LogitRows logits_;
  SamplerMemory sampler_{0};  // on rank 0 only
  std::vector<int32_t> best_;
};

}  // namespace shoal
