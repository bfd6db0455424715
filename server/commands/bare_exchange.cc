#include "server/commands/bare_exchange.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "runtime/comm/spin.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {
namespace {

constexpr size_t kRanks = 2;
constexpr size_t kFlagBytes = 128;  // processors prefetch cache lines in pairs

class BareExchange final : public Communicator {
 public:
  BareExchange(int rank, std::byte* shared, size_t max_bytes)
      : rank_(rank), shared_(shared), max_bytes_(max_bytes) {}

  const char* name() const override { return kBareExchange; }
  World world() const override { return {rank_, kRanks}; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override {
    if (count * sizeof(float) > max_bytes_ || plan.contributions != std::vector<int>{1, 1}) {
      return Status::error(Code::kUnimplemented,
                           "bare exchange: one contribution per rank, that fits");
    }
    const auto* theirs = reinterpret_cast<const float*>(slot(1 - rank_));
    std::memcpy(slot(rank_), own, count * sizeof(float));
    exchange();
    const float* planes[] = {rank_ == 0 ? own : theirs, rank_ == 0 ? theirs : own};
    tree_sum(plan.finish, planes, out, count);
    return {};
  }
  Status gather(int, std::span<const std::byte>, std::span<const size_t>, std::byte*) override {
    return Status::error(Code::kUnimplemented, "bare exchange: no gather");
  }
  Status barrier() override {
    exchange();
    return {};
  }
  WaitState wait_state() const override { return {turn_, "exchange", {}}; }

 private:
  uint32_t& flag(int rank) const {
    return *reinterpret_cast<uint32_t*>(shared_ + static_cast<size_t>(rank) * kFlagBytes);
  }
  /// Each rank has two slots and alternates between them, because the peer may still be reading the
  /// last one.
  std::byte* slot(int rank) const {
    return shared_ + kRanks * kFlagBytes + (static_cast<size_t>(rank) * 2 + turn_ % 2) * max_bytes_;
  }
  void exchange() {
    const uint32_t turn = turn_ + 1;
    std::atomic_ref<uint32_t>(flag(rank_)).store(turn, std::memory_order_release);
    const std::atomic_ref<uint32_t> theirs(flag(1 - rank_));
    while (static_cast<int32_t>(theirs.load(std::memory_order_acquire) - turn) < 0) cpu_relax();
    turn_ = turn;
  }

  const int rank_;
  std::byte* const shared_;
  const size_t max_bytes_;
  uint32_t turn_ = 0;
};

}  // namespace

size_t bare_exchange_bytes(size_t max_bytes) {
  return kRanks * kFlagBytes + kRanks * 2 * max_bytes;
}

std::unique_ptr<Communicator> make_bare_exchange(int rank, std::byte* shared, size_t max_bytes) {
  return std::make_unique<BareExchange>(rank, shared, max_bytes);
}

}  // namespace shoal
