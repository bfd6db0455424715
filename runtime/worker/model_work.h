#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/kv_room.h"
#include "models/library_products.h"
#include "models/safetensors.h"
#include "runtime/base/device_kind.h"
#include "runtime/base/dtype.h"
#include "runtime/engine/engine_limits.h"
#include "runtime/rank/rank_work.h"
#include "runtime/worker/device_arithmetic.h"

namespace shoal {

/// What each rank of a model needs to load its part. It is sent as RankStart::work.
struct ModelStart {
  /// The text of config.json. The front has read it once, so that a rank that is started again sees
  /// what the first one saw.
  std::string config_json;
  std::string config_path;      ///< names it in messages
  CheckpointLayout checkpoint;  ///< of files whose descriptors the rank inherits
  Dtype dtype = Dtype::kBf16;   ///< weights are converted to it as they are loaded
  std::string kernels;
  int32_t threads = 1;  ///< threads of each rank
  EngineLimits limits;
  /// A step may want the logits of every token, and not only of one for each sequence.
  bool all_logits = false;
  DeviceKind device = DeviceKind::kCpu;
  /// On devices, if results need not be reproducible.
  ProductLibrary library = {};
  /// On devices: KvBlocksWanted::share.
  double device_memory_share = 1;
  /// On devices: the fewest blocks of KV cache with which to start, if there is no room for
  /// limits.kv_blocks any more.
  int32_t least_kv_blocks = 1;
  /// On devices, if RankStart::has_run: group_hash() of the group that has run, with whose bits
  /// streams go on.
  uint64_t tensor_cores = 0;
  /// Likewise: what the rank that took least of its device had of weights and KV cache when the
  /// group ran.
  int64_t least_device_bytes = 0;

  /// The most rows of logits that one step can want.
  int64_t max_logit_rows() const {
    return all_logits ? limits.max_num_batched_tokens
                      : std::min(limits.max_num_seqs, limits.max_num_batched_tokens);
  }
};
template <typename Archive>
void fields(Archive& archive, ModelStart& m) {
  archive(m.config_json, m.config_path, m.checkpoint, m.dtype, m.kernels, m.threads, m.limits,
          m.all_logits, m.device, m.library, m.device_memory_share, m.tensor_cores,
          m.least_kv_blocks, m.least_device_bytes);
}

/// What each rank of a model reports when it is ready. It is sent as Ready::about.
struct ModelReady {
  std::string kernels;  ///< their set's name, or "cuda"
  /// What decides the bits of results: ArithmeticFingerprint::text(), or on devices the class of
  /// the tensor cores, the number of leaves, and with --reproducible off that and the library
  /// ("cuda-sm90-8-off-cublas-13.1.0-from-33").
  std::string arithmetic;
  int64_t weight_bytes = 0;  ///< of this rank
  int64_t kv_bytes = 0;
  int32_t kv_blocks = 0;  ///< the same on every rank
  /// WeightSum of the rank's weights. The number of ranks, the type and the kernels are the same
  /// for as long as a server lives, so that equal weights give equal sums.
  uint64_t weight_sum = 0;
  /// On devices: what the rank found there before it took its KV cache.
  std::optional<KvRoom> room = {};
  uint64_t tensor_cores = 0;  ///< on devices: group_hash()
};
template <typename Archive>
void fields(Archive& archive, ModelReady& m) {
  archive(m.kernels, m.arithmetic, m.weight_bytes, m.kv_bytes, m.kv_blocks, m.weight_sum, m.room,
          m.tensor_cores);
}

/// Checks that all ranks have the same number of blocks of KV cache, because the front's plans rely
/// on it. INTERNAL, with the first rank whose number differs from that of rank 0.
Status check_alike(const std::vector<ModelReady>& ranks);

class ModelRunner;

/// One rank's part of a model, as a RankWork. Its steps are StepPlan and StepResult
/// (runtime/engine/step_plan.h).
class ModelWork final : public RankWork {
 public:
  ModelWork();
  ~ModelWork() override;

  /// Checks this processor's arithmetic, loads weights, takes the memory of KV cache, activations
  /// and logits, and warms up.
  Result<std::string> begin(RankContext& context) override;
  Result<std::string> step(uint64_t number, std::string_view plan) override;

 private:
  Result<std::string> begin_model(RankContext& context);
  Result<std::optional<KvRoom>> settle_kv_cache(const ModelStart& start, RankContext& context);
  Result<std::vector<RankTensorCores>> check_device(const ModelStart& start, RankContext& context);
  void name_device(const std::vector<RankTensorCores>& devices, bool reproducible,
                   const ProductLibrary& library, ModelReady* ready) const;

  std::unique_ptr<ModelRunner> runner_;
  bool on_device_ = false;
  bool answers_ = false;  // true on rank 0 only, whose results the front reads
};

}  // namespace shoal
