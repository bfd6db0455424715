#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "runtime/engine/engine_limits.h"
#include "runtime/engine/kv_block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/request_error.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/step_plan.h"

namespace shoal {

/// Decides what the next step computes: continuous batching over a paged KV cache. It is pure (no
/// device, socket, clock or random number), so that the same calls give the same plans. Not
/// thread-safe.
///
/// A step takes every running decode first (one token each), then prompt chunks in order of arrival
/// up to max_num_batched_tokens, then new sequences whose first chunk finds blocks. A sequence that
/// finds no block preempts the youngest running one. That one gives all its blocks back and is
/// prefilled again later, including its output tokens. The youngest itself waits for a block and
/// keeps those it has. The oldest therefore always moves, so that there is no livelock.
class Scheduler {
 public:
  /// Precondition: max_num_seqs, max_num_batched_tokens and max_model_len are at least 1, the
  /// others at least 0.
  explicit Scheduler(const EngineLimits& limits);

  /// Queues a request. INVALID_ARGUMENT, with the field: empty prompt, max_tokens below 1, or
  /// prompt + 1 token beyond max_model_len or beyond what all blocks could hold;
  /// RESOURCE_EXHAUSTED: max_num_seqs + max_waiting requests are here already; ALREADY_EXISTS: the
  /// id is in use.
  RequestError add(EngineRequest request);

  /// The next step; it has no sequences if there is nothing to do. Call complete() with its result
  /// before the next plan().
  StepPlan plan();

  /// Records the result of the last plan and gives one event per sampled token, in the plan's
  /// order. An event with a finish holds the sequence's last token, because of its id or because
  /// the length is max_tokens, max_model_len or all that the blocks together hold. The caller then
  /// ends the sequence with finish() before the next plan(). Tokens of ids finished meanwhile are
  /// dropped. Precondition: result answers that plan.
  std::vector<TokenEvent> complete(const StepResult& result);

  /// Ends a sequence for any reason (an id, the length, a stop string, a cancel); only this call
  /// removes one. May be called before or after plan() or complete(). Its blocks are free at the
  /// next plan(). Returns false if there is no such id.
  bool finish(uint64_t id);

  /// For when the last plan was lost with its workers: every running sequence goes back to waiting,
  /// ahead of the others and in order, with the tokens it has.
  void requeue_running();

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  EngineLoad load() const;

 private:
  using Owned = std::unique_ptr<Sequence>;

  int32_t grant(size_t index, int32_t budget);
  void admit(int32_t budget);
  void requeue_youngest();
  SequenceStep step_of(const Sequence& sequence) const;
  std::optional<Finish> finish_of(const Sequence& sequence) const;
  void release_blocks(Sequence& sequence);

  EngineLimits limits_;
  // Most tokens of one sequence: the smaller of max_model_len and what all blocks hold.
  int32_t longest_;
  KvBlockPool pool_;
  // Together they are in order of arrival: sequences move only from the front of waiting_ to the
  // back of running_, and back.
  std::vector<Owned> running_;
  std::deque<Owned> waiting_;
  std::vector<Sequence*>
      planned_;  // sequences of the last plan, in its order; nullptr once finished
  std::unordered_set<uint64_t> ids_;
  uint64_t step_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace shoal
