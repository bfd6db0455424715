#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "runtime/engine/engine_limits.h"
#include "runtime/engine/kv_block_pool.h"
#include "runtime/engine/request.h"
#include "runtime/engine/request_error.h"
#include "runtime/engine/scheduling_policy.h"
#include "runtime/engine/seat_order.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/sequence_list.h"
#include "runtime/engine/step_plan.h"

namespace shoal {

/// How many tokens of prompts a step may take, of all sequences together. It never takes more than
/// max_num_batched_tokens leaves beside its decodes.
struct PrefillBudget {
  int32_t alone = std::numeric_limits<int32_t>::max();  ///< in a step without a decode; at least 1
  int32_t beside_decodes = std::numeric_limits<int32_t>::max();  ///< in a step with one
};

/// What a Scheduler is made with. Only the loop, which owns it, and a helper of the tests can make
/// one.
class SchedulerKey {
  explicit SchedulerKey() = default;
  friend class InferenceLoop;
  friend struct SchedulerForTests;
};

/// Decides what the next step computes: continuous batching over a paged KV cache. It is pure (no
/// device, socket, clock or random number), so that the same calls give the same plans. Not
/// thread-safe.
///
/// A waiting sequence is admitted when a seat is free, in the turns of SeatOrder, if all its tokens
/// fit beside the blocks that the running ones lack and will probably need. Otherwise smaller ones
/// may pass it. Nobody passes a sequence that waits to get back the blocks it has lost.
///
/// A step takes every running decode first (one token each), then the prompts of running sequences
/// up to the budget. The prompt that lacks the fewest tokens goes first, because each of the others
/// then waits as little as it can.
///
/// A sequence with a seat is overtaken when one that got its seat later begins its prompt before
/// the sequence has ended its own. A waiting one is overtaken when another one passes it because
/// its blocks are not free, or when a later one of its client, or one of a better priority, begins
/// before it. The turn of another client is none of these. After kMaxOvertaken times its prompt
/// goes before all others, no priority counts against it, and nobody passes it any more when it is
/// its client's turn, so that none starves.
///
/// Running sequences have an order of precedence: the earlier one precedes the later one, or the
/// one with the better priority the other. A sequence that needs a block when none is free takes
/// the blocks of the last one in this order, if that comes after it. The other one is preempted: it
/// is prefilled again later, including its output tokens. If none comes after it, the sequence
/// keeps the blocks it has and waits for another. Because nobody can take blocks from the first
/// sequence, it always goes on, and therefore all of them end at some time.
class Scheduler {
 public:
  /// Precondition: max_num_seqs, max_num_batched_tokens and max_model_len are at least 1, the
  /// others at least 0.
  Scheduler(SchedulerKey key, const EngineLimits& limits, SchedulingPolicy policy);

  /// Whether add() would take the request: an error of check_request(), or ALREADY_EXISTS if the id
  /// is in use.
  RequestError check(const EngineRequest& request) const;
  /// Queues a request, or returns the error of check(). The caller decides how many may wait
  /// (RequestQueue).
  RequestError add(EngineRequest request);

  /// The next step; it has no sequences if there is nothing to do. Call complete() with its result
  /// before the next plan().
  StepPlan plan(const PrefillBudget& budget = {});

  /// Records the result of the last plan and gives one event per sampled token, in the plan's
  /// order. An event with a finish holds the sequence's last token, because of its id or because
  /// the length is max_tokens, max_model_len or all that the blocks together hold. The caller then
  /// ends the sequence with finish() before the next plan(). Tokens of ids finished meanwhile are
  /// dropped. Precondition: result answers that plan.
  std::vector<TokenEvent> complete(const StepResult& result);

  /// Ends a sequence for any reason (an id, the length, a stop string, a cancel); only this call
  /// removes one. May be called before or after plan() or complete(). Its blocks are free at the
  /// next plan(). by_itself: it was not cancelled, so its length helps to guess the length of
  /// others. Returns false if there is no such id.
  bool finish(uint64_t id, bool by_itself = true);

  /// For when the last plan was lost with its workers: every running sequence goes back to waiting,
  /// in its old place, with the tokens it has.
  void requeue_running();

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  EngineLoad load() const;
  /// The work that would run before such a request if it came now and no other request came later.
  /// without: ids of waiting requests that are not counted, because they would be evicted for it.
  Backlog ahead_of(const Prospect& prospect, const std::vector<uint64_t>& without = {}) const;
  /// Whether nobody waits, and a seat is free.
  bool idle_seat() const { return waiting_.empty() && has_seat(); }
  /// Whether requests wait because no place is free, or too few blocks for any of them.
  bool held_up() const;
  /// Whether the last plan took as many tokens of prompts as its budget allowed, and at least one.
  bool budget_spent() const { return budget_spent_; }

 private:
  using Owned = std::unique_ptr<Sequence>;
  using PromptKey = std::tuple<bool, int32_t, bool, int32_t, uint64_t>;

  bool precedes(const Sequence& a, const Sequence& b) const;
  PromptKey prompt_key(const Sequence& sequence) const;
  bool has_seat() const { return running_.size() < static_cast<size_t>(limits_.max_num_seqs); }
  void plan_decodes();
  void return_unused_places();
  void admit_waiting();
  void plan_prompts(int32_t budget);
  void grant(Sequence& sequence, int32_t budget);
  Sequence* victim_for(const Sequence& sequence) const;
  bool held_back(const Sequence& sequence) const;
  int32_t expected_blocks(const Sequence& sequence) const;
  int64_t reserved_blocks() const;
  void note_overtaken_by(const Sequence& sequence);
  void requeue(Sequence& sequence);
  StepPlan make_plan();
  SequenceStep step_of(const Sequence& sequence) const;
  std::optional<Finish> finish_of(const Sequence& sequence) const;
  void learn_length(const Sequence& ended);
  void release_blocks(Sequence& sequence);

  EngineLimits limits_;
  const SchedulingPolicy policy_;
  // Most tokens of one sequence: the smaller of max_model_len and what all blocks hold.
  int32_t longest_;
  KvBlockPool pool_;
  // Each in order of arrival. A sequence has blocks, or tokens in the plan, only while it runs.
  SequenceList running_, waiting_;
  SeatOrder seats_;  // of those without blocks
  std::vector<Sequence*>
      planned_;  // sequences of the last plan, in its order; nullptr once finished
  std::unordered_set<uint64_t> ids_;
  uint64_t step_ = 0;
  uint64_t arrivals_ = 0;
  int64_t preemptions_ = 0;
  bool budget_spent_ = false;
  double usual_output_ = 256;  // tokens that a sequence generates, if nothing cuts it short
};

}  // namespace shoal
