#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/engine/kv_block_pool.h"
#include "runtime/engine/request.h"

namespace shoal {

struct Sequence;

/// Continuous batching over a paged KV cache: what the next step computes. Pure: no device, socket, clock or random
/// number, so that the same calls give the same plans. Not thread-safe.
///
/// A step takes every running decode first (one token each), then prompt chunks in order of arrival up to
/// max_num_batched_tokens. A sequence that finds no block preempts the youngest running one, which gives all its blocks
/// back and is prefilled again later, its output tokens included.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);
  ~Scheduler();

  /// Queues a request. INVALID_ARGUMENT: empty prompt, or prompt + 1 token beyond max_model_len or beyond what all blocks
  /// could hold; RESOURCE_EXHAUSTED: the queue is full; ALREADY_EXISTS: the id is in use.
  Status add(EngineRequest request);

  /// The next step; no sequences when there is nothing to do. Call complete() with its result before the next plan().
  StepPlan plan();

  /// Records the result of the last plan and gives one event per sampled token, in the plan's order. Sequences that
  /// finished by id or length are gone, their blocks free. Tokens of ids finished meanwhile are dropped.
  std::vector<TokenEvent> complete(const StepResult& result);

  /// Ends a sequence (stop string, cancel), at any time outside plan()..complete() or between them; its blocks are free at
  /// the next plan(). False: no such id.
  bool finish(uint64_t id);

  /// The last plan was lost with its workers: every running sequence goes back to waiting, ahead of the others and in
  /// order, with the tokens it has.
  void requeue_running();

  bool has_work() const;
  EngineLoad load() const;

 private:
  SchedulerLimits limits_;
  KvBlockPool pool_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by arrival
  uint64_t step_ = 0;
  uint64_t arrivals_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace shoal
