#include "runtime/worker/logit_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/memory/populate.h"

namespace shoal {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

/// A group of one rank has whole rows from the start.
bool assembles_rows(const ShardPlan& plan) {
  return plan.world.rank == 0 && plan.world.size > 1;
}

}  // namespace

int64_t LogitRows::bytes(const ShardPlan& plan, int64_t rows) {
  const int64_t columns = plan.world.rank == 0 ? plan.vocab_size : plan.vocab.size();
  return kFloat * (rows * columns + (assembles_rows(plan) ? plan.vocab_size : 0));
}

Result<LogitRows> LogitRows::allocate(const ShardPlan& plan, int64_t rows) {
  LogitRows logits;
  logits.plan_ = &plan;
  logits.capacity_ = rows;
  const std::string what = cat(counted(rows, "row"), " of logits");
  Result<AlignedBuffer> memory = AlignedBuffer::allocate(static_cast<size_t>(bytes(plan, rows)));
  if (!memory.ok()) return memory.status().while_doing("allocate " + what);
  logits.memory_ = std::move(memory).value();
  const Status touched = populate(logits.memory_.as<>(), logits.memory_.bytes());
  if (!touched.ok()) return touched.while_doing("touch " + what);
  return logits;
}

void LogitRows::move_own(int64_t from, int64_t rows, int64_t to) {
  const int64_t columns = plan_->vocab.size();
  if (from == to || columns == 0) return;
  std::memmove(own() + to * columns, own() + from * columns,
               static_cast<size_t>(rows * columns * kFloat));
}

Status LogitRows::gather(Communicator& communicator, int64_t rows) {
  gathered_ = rows;
  std::vector<size_t> sizes;
  for (int rank = 0; rank < plan_->world.size; ++rank) {
    sizes.push_back(static_cast<size_t>(rows * plan_->vocab_of_rank(rank).size() * kFloat));
  }
  const size_t mine = sizes[static_cast<size_t>(plan_->world.rank)];
  return communicator.gather(0, {memory_.as<>(), mine}, sizes, memory_.as<>());
}

std::span<const float> LogitRows::whole(int64_t row) {
  const int64_t vocab = plan_->vocab_size;
  if (!assembles_rows(*plan_)) return {own() + row * vocab, static_cast<size_t>(vocab)};
  float* const out = own() + capacity_ * vocab;
  const float* from = own();
  for (int rank = 0; rank < plan_->world.size; ++rank) {
    const Range ids = plan_->vocab_of_rank(rank);
    std::copy_n(from + row * ids.size(), ids.size(), out + ids.begin);
    from += gathered_ * ids.size();
  }
  return {out, static_cast<size_t>(vocab)};
}

}  // namespace shoal
