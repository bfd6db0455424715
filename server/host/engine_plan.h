#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/worker/model_work.h"
#include "server/cli/flags.h"
#include "server/host/host_resources.h"
#include "server/host/model_files.h"

namespace shoal {

/// The bytes that a start needs, computed before anything is loaded.
struct MemoryEstimate {
  int64_t weight_bytes = 0;          ///< of all ranks together, packed
  int64_t largest_weight_bytes = 0;  ///< of the rank that has the most
  int64_t kv_bytes_per_block = 0;    ///< of all ranks together
  /// Activations, rows of logits and the memory of the sampler: of all ranks together,
  /// approximately.
  int64_t activation_bytes = 0;
  uint64_t available_bytes = 0;
  // The members from here on are for ranks on devices.
  int64_t host_bytes = 0;  ///< pinned memory, and rows of logits on the host, of all ranks together
  int64_t device_bytes = 0;        ///< that a rank may use of its device, where this is least
  int64_t device_taken_bytes = 0;  ///< what others have of its part there, already subtracted
  int64_t largest_activation_bytes = 0;
  /// The blocks of KV cache for which every rank has room on its device.
  int64_t device_kv_blocks = INT32_MAX;
};

/// How a model will run. Everything is decided, but nothing is started.
struct EnginePlan {
  int world_size = 1;
  ModelStart model;           ///< what every rank receives; the scheduler uses its limits too
  std::vector<int32_t> cpus;  ///< the CPUs of all ranks, one rank after the other; empty: not bound
  MemoryEstimate memory;
  /// The files that the ranks load from. `model` names their descriptors, so that they stay open
  /// for as long as ranks may be started.
  std::vector<WatchedFile> files;
  /// The first start ends by then, if that is less than --startup-timeout from its beginning.
  Deadline start_by = Deadline::infinite();

  int64_t kv_bytes() const { return memory.kv_bytes_per_block * model.limits.kv_blocks; }
  /// Lowers the number of KV blocks to `blocks`, for commands that know how many their requests can
  /// use. Ranks that have room for fewer then do not start.
  void limit_kv_blocks(int64_t blocks);
  /// Computes `memory` from everything else, except for available_bytes. Call it again after a
  /// change of the limits. INVALID_ARGUMENT: the model cannot be cut for world_size.
  Status estimate_memory(const ModelConfig& config);
  /// What the memory of all ranks is taken from, or on devices what each rank may use of its own.
  /// nullopt: no device can be used.
  std::optional<int64_t> available_bytes() const;
  /// Describes the memory in one line for the log.
  std::string describe_memory() const;
};

/// Decides what the flags leave open, and checks the flags against model and machine.
/// INVALID_ARGUMENT: a flag does not fit; the message has the numbers and what to do. Callers
/// report these errors as Stage::kRequest, because the flags are at fault.
Result<EnginePlan> plan_engine(const EngineFlags& flags, const ModelFiles& model,
                               const HostResources& host);

/// Logs what the ranks will take. It is not in start_log.h, because the static tools, which log
/// starts too, have no plan.
void log_memory(const EnginePlan& plan);

/// The number of KV blocks that this many tokens need.
int64_t blocks_for_tokens(int64_t tokens);

/// "1.5 GiB".
std::string format_bytes(double bytes);

}  // namespace shoal
