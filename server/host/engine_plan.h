#pragma once
#include <cstdint>
#include <string>

#include "models/model_config.h"
#include "models/safetensors.h"
#include "runtime/control/messages.h"
#include "runtime/engine/request.h"
#include "server/cli/flags.h"
#include "server/host/host_resources.h"

namespace shoal {

/// MODEL's files, opened and checked as far as the front needs; the tokenizer apart, since not
/// every command wants one.
struct ModelFiles {
  std::string name;  ///< MODEL's last path component
  std::string dir;
  ModelConfig config;
  GenerationConfig generation;
  Checkpoint checkpoint;
};

/// Errors are of Stage::kModel: NOT_FOUND, INVALID_ARGUMENT (damaged), UNIMPLEMENTED.
Result<ModelFiles> open_model(const std::string& dir);

/// Bytes that a start needs, by arithmetic, before anything is loaded.
struct MemoryEstimate {
  int64_t weight_bytes = 0;          ///< of all ranks together, packed
  int64_t largest_weight_bytes = 0;  ///< of the rank that has most
  int64_t kv_bytes_per_block = 0;    ///< of all ranks together
  int64_t activation_bytes = 0;      ///< about, all ranks together
  uint64_t available_bytes = 0;
};

/// How a model will run: everything decided, nothing started.
struct EnginePlan {
  int world_size = 1;
  WorkerInit
      init;  ///< as WorkerGroupOptions wants it; cpus holds every rank's, one after the other
  SchedulerLimits limits;
  MemoryEstimate memory;

  int64_t kv_bytes() const { return memory.kv_bytes_per_block * limits.kv_blocks; }
  /// For commands that know their requests: no more KV blocks than those could use.
  void limit_kv_blocks(int64_t blocks);
  /// One line for the log.
  std::string describe_memory() const;
};

/// Decides what the flags leave open, and checks what they say against model and machine.
/// INVALID_ARGUMENT (kernels: FAILED_PRECONDITION) with numbers and what to do: all are the flags'
/// fault (Stage::kRequest).
Result<EnginePlan> plan_engine(const EngineFlags& flags, const ModelFiles& model,
                               const HostResources& host);

/// KV blocks for so many tokens.
int64_t blocks_for_tokens(int64_t tokens);

/// "1.5 GiB".
std::string format_bytes(double bytes);

}  // namespace shoal
