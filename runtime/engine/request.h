#pragma once
#include <cstdint>
#include <vector>

#include "runtime/control/messages.h"

namespace shoal {

/// A request as the engine sees it: ids in, a limit, and which ids end it. Every default has been
/// filled in.
struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt;  ///< at least one id
  SamplingParams sampling;
  int32_t max_tokens = 0;              ///< >= 1
  std::vector<int32_t> eos_token_ids;  ///< empty with ignore_eos
  std::vector<int32_t> stop_token_ids;
};

enum class FinishReason { kStop, kLength, kCancelled };

/// What complete() made of one sequence's step.
struct TokenEvent {
  uint64_t id = 0;
  SampledToken token;
  bool finished = false;
  FinishReason reason = FinishReason::kLength;
  int32_t stop_token_id = -1;  ///< the id that ended it, where one did
  bool stopped_by_eos = false;
};

struct SchedulerLimits {
  int32_t max_num_seqs = 0;            ///< running at once
  int32_t max_num_batched_tokens = 0;  ///< per step
  int32_t kv_blocks = 0;
  int32_t max_model_len = 0;  ///< prompt and output tokens of one sequence
  int32_t max_waiting = 0;    ///< requests queued beyond the running ones
};

struct EngineLoad {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t used_kv_blocks = 0;
  int32_t total_kv_blocks = 0;
  int64_t running_tokens = 0;
  int64_t waiting_tokens = 0;
  int64_t preemptions = 0;
};

}  // namespace shoal
