#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/kv_room.h"
#include "models/layers.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "runtime/base/thread_pool.h"
#include "runtime/base/world.h"
#include "runtime/comm/communicator.h"
#include "runtime/control/messages.h"
#include "runtime/device/device.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/logit_rows.h"
#include "runtime/worker/model_work.h"
#include "runtime/worker/sampler.h"

namespace shoal {

/// One rank's model: weights, KV cache, forward pass, and on rank 0 the choice of tokens. Only one
/// thread may call it.
class ModelRunner {
 public:
  /// Where a rank computes.
  struct RankPlace {
    World world;
    std::vector<int32_t> cpus = {};             ///< one for each thread, or empty
    std::shared_ptr<Device> device = nullptr;   ///< for ModelStart::device; nullptr on the CPU
    int64_t collective_timeout_ms = 3'600'000;  ///< of each collective between devices
  };

  /// Loads the rank's shard of the weights. Errors name the file and the tensor, or the memory that
  /// was refused. The descriptors of start.checkpoint may
  /// be closed afterwards.
  static Result<std::unique_ptr<ModelRunner>> load(
      const ModelStart& start, const KernelTable& kernels, const RankPlace& place,
      const std::function<void(const LoadProgress&)>& progress);

  /// Takes and touches the memory of the KV cache, of a step's activations and of its rows of
  /// logits, so that a page that cannot be had ends the start and not a request. On a device the KV
  /// cache has only the block that warm_up() needs. `communicator` must live as long as the runner.
  /// RESOURCE_EXHAUSTED: the memory is refused.
  Status take_memory(Communicator& communicator);

  /// What is left for the KV cache on the rank's device; nullopt if the cache is in host memory,
  /// where take_memory() has taken all of it.
  Result<std::optional<KvRoom>> kv_room() const { return layers_->kv_room(); }
  /// Takes a KV cache of this many blocks, at most the planned number, in place of the one that it
  /// has. Call it before any step of a request.
  Status take_kv_cache(int32_t blocks);

  /// The bytes that take_memory() takes on the plan's rank for this many rows of logits and for
  /// choosing tokens from them.
  static int64_t logit_bytes(const ShardPlan& plan, int64_t rows);

  /// Runs a step of one token on every rank and drops the result. On a device it then runs every
  /// kernel that only larger steps use. So what is slow only once is done before a request waits
  /// for it: reading pages of the weights and of the code from disk, loading a kernel, and the
  /// transport's first use in a step. It writes to block 0 of the KV cache, where the first
  /// sequence that gets this block writes its own keys and values before it reads any.
  Status warm_up();

  /// Sets what shows that a step is alive. `moved` is called after every part of a step: after
  /// those of the layers, and after each choice of a token.
  void set_signs(StepSigns signs);

  /// Runs a step. The result is complete on rank 0 and empty elsewhere. Errors: those of the
  /// communicator, and INTERNAL for a plan beyond the limits of ModelStart.
  Result<StepResult> run(const StepPlan& plan);

  int leaves() const { return plan_.leaves; }  ///< of the model's sums
  int64_t weight_bytes() const { return layers_->weight_bytes(); }
  uint64_t weight_sum() const { return layers_->weight_sum(); }
  int64_t kv_bytes() const { return layers_->kv_bytes(); }
  int32_t kv_blocks() const { return kv_blocks_; }
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
  EngineLimits limits_;
  bool on_device_ = false;
  int32_t kv_blocks_ = 0;
  int64_t max_logit_rows_ = 0;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<Layers> layers_;
  std::function<Status()> moved_;
  DecoderBatch batch_;
  std::vector<Wanted> wanted_;
  LogitRows logits_;
  SamplerMemory sampler_{0};            // on rank 0 only
  std::vector<ArgmaxResult> own_best_;  // [logit rows of the step]
  std::vector<int32_t> best_;
};

}  // namespace shoal
