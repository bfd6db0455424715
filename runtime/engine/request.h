#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/sampling.h"

namespace shoal {

/// A request as the engine sees it: the prompt's ids, a limit, and the ids that end it. All
/// defaults are filled in.
struct EngineRequest {
  uint64_t id = 0;
  std::vector<int32_t> prompt;  ///< at least one id
  SamplingParams sampling;
  int32_t max_tokens = 0;              ///< >= 1
  std::vector<int32_t> eos_token_ids;  ///< empty with ignore_eos
  std::vector<int32_t> stop_token_ids;
  int32_t priority = 0;  ///< lower goes first; only SchedulingPolicy::kPriority looks at it
  std::string client;    ///< who sent it; clients take turns
};

enum class FinishReason { kStop, kLength, kCancelled };

/// Why a sequence has ended.
struct Finish {
  FinishReason reason = FinishReason::kCancelled;
  int32_t stop_token_id = -1;  ///< the id that ended it, if one did
  bool stopped_by_eos = false;
};

/// One token that Scheduler::complete() has added to a sequence.
struct TokenEvent {
  SampledToken token;
  std::optional<Finish> finish;  ///< set if this token is the last one, by its id or by the length
};

/// A request that may come.
struct Prospect {
  std::string client = {};
  int32_t prompt_tokens = 0;
  int32_t priority = 0;
};

/// What has to happen before a request can be in a step.
struct Backlog {
  int64_t prompt_tokens = 0;  ///< to be computed first, of prompts that run or wait
  /// Requests that begin first, itself included, except those for which there are places and KV
  /// blocks already. 0: it has a place.
  int64_t begins = 0;
};

struct EngineLoad {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t used_kv_blocks = 0;
  int32_t total_kv_blocks = 0;
  int64_t running_tokens = 0;
  int64_t waiting_tokens = 0;
  int64_t prompt_tokens = 0;  ///< still to be computed, of all prompts
  int64_t preemptions = 0;
};

}  // namespace shoal
