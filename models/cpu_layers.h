#pragma once
#include <memory>
#include <vector>

#include "kernels/kernel_table.h"
#include "models/kv_cache.h"
#include "models/layers.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "models/weights.h"
#include "runtime/base/aligned_buffer.h"
#include "runtime/base/thread_pool.h"

namespace shoal {

/// The layers on the CPU. The pool's threads share the work of each call.
class CpuLayers final : public Layers {
 public:
  /// These must outlive the layers.
  struct Parts {
    const ModelConfig& config;
    const ShardPlan& plan;
    const KernelTable& kernels;
    ThreadPool& pool;
  };
  /// Loads the rank's weights. The mapped checkpoint must outlive the layers. Returns the errors of
  /// load_weights().
  static Result<std::unique_ptr<Layers>> load(const Parts& parts, const Checkpoint& checkpoint,
                                              Dtype dtype, const LoadCallback& progress);

  /// The bytes of activations that take_memory() allocates for max_rows rows.
  static int64_t activation_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype,
                                  int max_rows);

  Status take_memory(const StepRoom& room, Communicator& communicator) override;
  Status take_kv_cache(int32_t blocks) override;
  Status launch_shapes() override { return {}; }
  Result<std::optional<KvRoom>> kv_room() const override { return std::optional<KvRoom>(); }
  Status begin(const DecoderBatch& batch) override;
  Status attention(int layer) override;
  Status mlp(int layer) override;
  Status reduce(int layer, Part part) override;
  Status logits(const StepLogits& out) override;
  Status finish() override { return {}; }
  int64_t weight_bytes() const override { return weights_.packed_bytes; }
  uint64_t weight_sum() const override { return weights_.sum; }
  int64_t kv_bytes() const override { return cache_.size_bytes(); }

  CpuLayers(const Parts& parts, Weights weights);
  ~CpuLayers() override;

 private:
  struct Buffers;

  void rotary_angles();
  void normalize(const float* weight, int64_t rows);
  Status multiply(const PackedMatrix& w, const void* x, int64_t x_stride, int64_t rows, float* y);
  void place_keys(const LayerWeights& weights, const KvLayer& cache);
  Status attend(int window, const KvLayer& cache);
  void move_rows_to_front();

  /// Runs body(begin, end) over the rows, on the whole team only if there is enough work to share.
  template <typename Body>
  void over_rows(int64_t rows, const Body& body);

  const Parts parts_;
  const Weights weights_;
  const Dtype activation_;
  std::vector<float> inv_freq_;
  float attention_factor_ = 1;
  int max_rows_ = 0;
  Communicator* communicator_ = nullptr;
  KvCache cache_;
  AlignedBuffer memory_;
  std::unique_ptr<Buffers> buffers_;
  const DecoderBatch* batch_ = nullptr;  // of the step that runs
  int64_t rows_ = 0;
};

}  // namespace shoal
