#pragma once
#include <cstdint>
#include <span>

#include "models/shard_plan.h"
#include "runtime/base/aligned_buffer.h"
#include "runtime/comm/communicator.h"

namespace shoal {

/// The rows of logits of one step: on every rank its own part of each row, and on rank 0 the whole
/// rows that it samples from. All the memory is taken and touched at the start, because a step must
/// not fail for a page. Not thread-safe.
class LogitRows {
 public:
  LogitRows() = default;
  /// Memory for `rows` rows on the plan's rank. The plan must outlive the result.
  /// RESOURCE_EXHAUSTED, with the number of rows: the memory is refused.
  static Result<LogitRows> allocate(const ShardPlan& plan, int64_t rows);

  /// The bytes that allocate() takes for these numbers.
  static int64_t bytes(const ShardPlan& plan, int64_t rows);

  int64_t capacity() const { return capacity_; }

  /// [capacity, vocabulary of this rank]: row i begins at i * its size.
  float* own() const { return memory_.as<float>(); }

  /// Moves `rows` own rows from the place of row `from` to that of row `to`, which is not behind
  /// it.
  void move_own(int64_t from, int64_t rows, int64_t to);

  /// Sends the first `rows` own rows to rank 0. Every rank calls it with the same number. On rank 0
  /// the own rows behind them are overwritten. Returns the communicator's errors.
  Status gather(Communicator& communicator, int64_t rows);

  /// One of the rows that were gathered, whole: [vocabulary]. On rank 0 only. The next call may
  /// overwrite it.
  std::span<const float> whole(int64_t row);

 private:
  const ShardPlan* plan_ = nullptr;
  int64_t capacity_ = 0;
  int64_t gathered_ = 0;
  // Other ranks: their own rows. Rank 0: the rows of every rank, one rank after the other, and then
  // room for one whole row. Its own rows come first, so that a gather leaves them where they are.
  AlignedBuffer memory_;
};

}  // namespace shoal
