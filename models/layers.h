#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/args.h"
#include "models/kv_room.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// The rows of one step: tokens of several sequences, one after the other.
struct DecoderBatch {
  std::vector<int32_t> token_ids;       ///< [rows]
  std::vector<int32_t> positions;       ///< [rows]
  std::vector<SequenceRows> sequences;  ///< cover the rows; their block tables must outlive the
                                        ///< step
  std::vector<int32_t> logit_rows;      ///< the rows whose logits are wanted, ascending
  /// [logit_rows]: 1 if the whole row of logits is wanted, 0 if its greatest logit is enough.
  std::vector<uint8_t> whole;
};

/// Where a step's logits go, in host memory. A rank has the logits of its part of the vocabulary.
struct StepLogits {
  /// [logit_rows][vocabulary of this rank]. Only rows that are wanted whole are sure to be written.
  float* rows = nullptr;
  /// [logit_rows]: the greatest logit of the rows that are not wanted whole, and its column in this
  /// rank's part. {-infinity, -1} if the rank has no part of the vocabulary.
  ArgmaxResult* best = nullptr;
};

/// The largest step that is possible: the most of each of these that one step can contain.
struct StepRoom {
  int32_t rows = 0;        ///< tokens
  int32_t sequences = 0;   ///< sequences
  int32_t positions = 0;   ///< of one sequence
  int64_t logit_rows = 0;  ///< rows whose logits are wanted
};

/// How a step shows that it is alive, and how it learns that it must end: each function may return
/// an error, which ends the step with that error. They may be empty.
struct StepSigns {
  std::function<Status()> moved;  ///< another part of the step has been completed
  /// Called before a step's first op on a device, and then about every 100 ms while the host waits
  /// for the device. where: what the device is doing, in words for people: "its GPU in layer 5,
  /// mlp". mark: how far the device is in the step. sums: the device may be waiting for other ranks
  /// at this place.
  std::function<Status(const std::string& where, uint64_t mark, bool sums)> waits;
};

/// One rank's part of a model on one kind of device: its weights, its KV cache, the activations of
/// a step, and the ops on them. forward() in decoder.h walks over it. Make one call at a time.
/// After an error the rank must end.
class Layers {
 public:
  /// The two parts of a layer. The ranks' results are summed after each.
  enum class Part { kAttention, kMlp };

  virtual ~Layers() = default;

  /// Takes the memory of a step's activations, so that missing memory is reported here and not in
  /// the middle of a request. Call it once, before any step. The communicator must outlive the
  /// layers, and for layers on a device it must have on_devices(). RESOURCE_EXHAUSTED: the memory
  /// is refused.
  virtual Status take_memory(const StepRoom& room, Communicator& communicator) = 0;
  /// Takes a KV cache of this many blocks, in place of the one that it has. Call it before any
  /// step. RESOURCE_EXHAUSTED: the memory is refused.
  virtual Status take_kv_cache(int32_t blocks) = 0;
  /// Launches once every kernel that only steps of other sizes than the one before would launch,
  /// over that step's rows, whose batch must still be there, and waits for them. Call it before any
  /// step of a request. models/device_shapes.h says why.
  virtual Status launch_shapes() = 0;
  /// What is left for a KV cache on this rank's device; nullopt if the cache is in host memory.
  virtual Result<std::optional<KvRoom>> kv_room() const = 0;

  /// Takes a step's rows, at most room.rows of them, and looks up their embeddings. The batch must
  /// outlive finish().
  virtual Status begin(const DecoderBatch& batch) = 0;
  /// Computes this rank's contributions to a part of the layer. Attention also writes K and V of
  /// the rows to the cache.
  virtual Status attention(int layer) = 0;
  virtual Status mlp(int layer) = 0;
  /// Sums the contributions of all ranks and adds the sum to the rows. Returns the communicator's
  /// errors.
  virtual Status reduce(int layer, Part part) = 0;
  /// Computes the logits that the batch asks for.
  virtual Status logits(const StepLogits& out) = 0;
  /// Waits until the step is done. `out` of logits() is then complete.
  virtual Status finish() = 0;

  virtual int64_t weight_bytes() const = 0;
  virtual uint64_t weight_sum() const = 0;  ///< WeightSum of what was loaded
  virtual int64_t kv_bytes() const = 0;     ///< 0 before take_kv_cache()

  void set_signs(StepSigns signs) { signs_ = std::move(signs); }

 protected:
  Status moved() const { return signs_.moved ? signs_.moved() : Status(); }
  Status waits(const std::string& where, uint64_t mark, bool sums) const {
    return signs_.waits ? signs_.waits(where, mark, sums) : Status();
  }

 private:
  StepSigns signs_;
};

}  // namespace shoal
