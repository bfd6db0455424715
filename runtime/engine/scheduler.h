#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "runtime/engine/kv_block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/sequence.h"

namespace shoal {

/// Continuous batching over a paged KV cache: what the next step computes. Pure: no device, socket,
/// clock or random number, so that the same calls give the same plans. Not thread-safe.
///
/// A step takes every running decode first (one token each), then prompt chunks in order of arrival
/// up to max_num_batched_tokens, then new sequences whose first chunk finds blocks. A sequence that
/// finds no block preempts the youngest running one, which gives all its blocks back and is
/// prefilled again later, its output tokens included; the youngest itself waits for a block and
/// keeps those it has. The oldest therefore always moves: no livelock.
class Scheduler {
 public:
  /// Precondition: max_num_seqs, max_num_batched_tokens and max_model_len are at least 1, the
  /// others at least 0.
  explicit Scheduler(const SchedulerLimits& limits);

  /// Queues a request. INVALID_ARGUMENT: empty prompt, max_tokens below 1, or prompt + 1 token
  /// beyond max_model_len or beyond what all blocks could hold; RESOURCE_EXHAUSTED: max_num_seqs +
  /// max_waiting requests are here already; ALREADY_EXISTS: the id is in use.
  Status add(EngineRequest request);

  /// The next step; no sequences when there is nothing to do. Call complete() with its result
  /// before the next plan().
  StepPlan plan();

  /// Records the result of the last plan and gives one event per sampled token, in the plan's
  /// order. Sequences that finished by id or length are gone, their blocks free; the length ends at
  /// max_tokens, at max_model_len, or where all blocks together are full. Tokens of ids finished
  /// meanwhile are dropped. Precondition: result answers that plan.
  std::vector<TokenEvent> complete(const StepResult& result);

  /// Ends a sequence (stop string, cancel), before or after plan() or complete(); its blocks are
  /// free at the next plan(). False: no such id.
  bool finish(uint64_t id);

  /// The last plan was lost with its workers: every running sequence goes back to waiting, ahead of
  /// the others and in order, with the tokens it has.
  void requeue_running();

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  EngineLoad load() const;

 private:
  using Owned = std::unique_ptr<Sequence>;

  int32_t grant(size_t index, int32_t budget);
  void admit(int32_t budget);
  void requeue_youngest();
  SequenceStep step_of(const Sequence& sequence) const;
  bool ends(const Sequence& sequence, TokenEvent& event) const;
  void release_blocks(Sequence& sequence);

  SchedulerLimits limits_;
  int32_t longest_;  // tokens of one sequence: max_model_len or what all blocks hold
  KvBlockPool pool_;
  // Together in order of arrival: sequences move only from the front of waiting_ to the back of
  // running_, and back.
  std::vector<Owned> running_;
  std::deque<Owned> waiting_;
  std::vector<Sequence*> planned_;  // of the last plan, in its order; nullptr once finished
  std::unordered_set<uint64_t> ids_;
  uint64_t step_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace shoal
