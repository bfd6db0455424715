#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "models/device_tables.h"
#include "models/device_weights.h"
#include "models/layers.h"
#include "models/library_products.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/shard_plan.h"
#include "runtime/base/cat.h"
#include "runtime/base/thread_pool.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/device/device.h"

namespace shoal {

/// The layers on a CUDA device, through the ops in the module's table. It owns one stream, and all
/// the memory that a step uses, which it takes before the first step. Each op only enqueues:
/// whatever changes from step to step is copied to the device when the step begins. The host waits
/// in finish(), every some layers so that it is not far ahead, and in collectives in which it takes
/// part.
class CudaLayers final : public Layers {
 public:
  static constexpr int kLayersAhead = 16;
  struct Parts {
    const ModelConfig& config;  ///< must outlive the layers, like the plan
    const ShardPlan& plan;
    std::shared_ptr<Device> device;
    ThreadPool& pool;            ///< converts weights while they are loaded
    const KernelTable& kernels;  ///< for their checksum
    int64_t collective_timeout_ms;
    ProductLibrary library;  ///< computes products of many rows, if it is used
    /// The host is at most twice this many layers ahead of the device, because further ahead it
    /// would block inside the driver, where it could show no sign of life: a layer takes up to 11
    /// launches, or 23 if two of its products take 8 turns each (shoal_product_scratch_floats).
    /// Only tests set it.
    int layers_ahead = kLayersAhead;
  };
  /// Loads the rank's weights to the device. The checkpoint is not needed afterwards. Returns the
  /// errors of load_device_weights().
  static Result<std::unique_ptr<Layers>> load(const Parts& parts, const Checkpoint& checkpoint,
                                              Dtype dtype, const LoadCallback& progress);

  Status take_memory(const StepRoom& room, Communicator& communicator) override;
  Status take_kv_cache(int32_t blocks) override;
  Status launch_shapes() override;
  Result<std::optional<KvRoom>> kv_room() const override;
  Status begin(const DecoderBatch& batch) override;
  Status attention(int layer) override;
  Status mlp(int layer) override;
  Status reduce(int layer, Part part) override;
  Status logits(const StepLogits& out) override;
  Status finish() override;
  int64_t weight_bytes() const override { return weights_.bytes; }
  uint64_t weight_sum() const override { return weights_.sum; }
  int64_t kv_bytes() const override { return kv_bytes_; }

  CudaLayers(const Parts& parts, DeviceWeights weights);
  ~CudaLayers() override;

 private:
  struct Buffers;

  Status open_stream();
  Status send_step(const DecoderBatch& batch);
  Status mark_progress(int mark);
  Status normalize(const DeviceVector& weight, int64_t from_row, int64_t to_row, int32_t rows);
  Status multiply(const DeviceMatrix& w, const void* x, int64_t x_stride, int32_t rows, float* y);
  ShoalAttention attention_of(int layer) const;
  bool is_alone() const { return collective_->world().size == 1; }
  bool is_unfolded() const;
  float* contributions() const;
  Status attend(int layer);
  Status normalize_logit_rows();
  Status fetch_logits();
  bool has_moved();
  /// Tells the rank (StepSigns::waits) that the host waits for its GPU, in which part of which
  /// layer that is, which mark the GPU has passed, and whether it sums there and so may wait for
  /// others. The host counts as waiting during the whole step, also while it only enqueues: any
  /// such call may wait too, and cannot say so.
  Status show_wait() {
    const int layers = parts_.config.num_hidden_layers;
    return waits(cat("its GPU in ", part_after(seen_, layers)), seen_, sums_after(seen_, layers));
  }
  Status wait(void* event);
  Status wait_for_all();
  Status keep_pace(int layer);
  ShoalStepRows step_rows() const;
  ShoalKvLayer cache_of(int layer) const;

  const Parts parts_;
  const DeviceWeights weights_;
  const Dtype activations_;
  StepRoom room_;
  DeviceCollective* collective_ = nullptr;  // set by take_memory()
  Device::Stream stream_;
  Device::Event done_, pace_[2];
  Device::Memory memory_, pinned_, kv_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<LibraryProducts> products_;  // nullptr: own kernels compute every product
  int64_t kv_bytes_ = 0;
  ShoalAttention attention_ = {};  // what is the same in every step
  // The members from here on describe the step that runs now.
  const DecoderBatch* batch_ = nullptr;
  int32_t rows_ = 0;
  int longest_ = 0;  // positions of the longest sequence
  StepLogits out_;
  int64_t launched_ = 0;  // kernels, when the step began
  uint32_t seen_ = 0;     // the progress mark that the host has seen last
  bool failed_ = false;   // an op may still run
};

}  // namespace shoal
