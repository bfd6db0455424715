#include "tests/emulator/turns.h"

#include <numeric>

namespace shoal::emulator {

void Turns::begin(const Settings& settings, unsigned lanes, unsigned threads) {
  order_ = settings.order;
  random_.seed(settings.seed);
  lanes_ = lanes;
  threads_ = threads;
  cursor_ = order_ == Order::kReverse ? 0 : lanes - 1;
  period_ = turns_left_ = 0;
  if (order_ != Order::kRandom || random_() % 2 == 0) return;
  // Some runs change priorities so seldom that a warp can compute for long before another begins.
  period_ = uint64_t{64} << (4 * (random_() % 3));
  by_warp_ = random_() % 4 != 0;
  by_priority_.resize(lanes);
  std::iota(by_priority_.begin(), by_priority_.end(), 0U);
}

std::vector<uint64_t> Turns::order_of_blocks(uint64_t blocks) {
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (order_ == Order::kReverse) std::reverse(order.begin(), order.end());
  if (order_ == Order::kRandom) std::shuffle(order.begin(), order.end(), random_);
  return order;
}

void Turns::has_polled(unsigned lane) {
  if (period_ == 0) return;
  const auto found = std::find(by_priority_.begin(), by_priority_.end(), lane);
  std::rotate(found, found + 1, by_priority_.end());
}

void Turns::draw_priorities() {
  std::shuffle(by_priority_.begin(), by_priority_.end(), random_);
  if (by_warp_) {
    constexpr unsigned kWarp = 32;
    const unsigned warps_of_block = (threads_ + kWarp - 1) / kWarp;
    std::vector<uint64_t> of_warp(lanes_ / threads_ * warps_of_block);
    for (uint64_t& one : of_warp) one = random_();
    const auto rank = [&](unsigned lane) {
      return of_warp[lane / threads_ * warps_of_block + lane % threads_ / kWarp];
    };
    std::stable_sort(by_priority_.begin(), by_priority_.end(),
                     [&](unsigned a, unsigned b) { return rank(a) < rank(b); });
  }
  turns_left_ = random_() % (2 * period_);
}

}  // namespace shoal::emulator
