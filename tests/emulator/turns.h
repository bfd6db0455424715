#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/emulator/settings.h"

namespace shoal::emulator {

/// Which lane of a launch has its turn next, as EMULATED_GPU_ORDER asks. Lanes are
/// numbered through the launch: those of a block are consecutive, and so are those of a warp.
class Turns {
 public:
  /// Begins a launch of blocks that have `threads` lanes each. All that follows depends on these
  /// arguments and the settings alone.
  void begin(const Settings& settings, unsigned lanes, unsigned threads);
  /// The numbers of the blocks in the order in which they begin.
  std::vector<uint64_t> order_of_blocks(uint64_t blocks);
  /// The next lane that can run, or -1.
  template <typename IsReady>
  int next(const IsReady& is_ready) {
    return period_ > 0 ? next_by_priority(is_ready) : next_in_turn(is_ready);
  }
  /// To be called when a lane has only polled. All other lanes get their turns before it gets the
  /// next one.
  void has_polled(unsigned lane);

 private:
  template <typename IsReady>
  int next_in_turn(const IsReady& is_ready) {
    if (order_ == Order::kRandom) cursor_ = static_cast<unsigned>(random_() % lanes_);
    const unsigned step = order_ == Order::kReverse ? lanes_ - 1 : 1;
    for (unsigned i = 0; i < lanes_; ++i) {
      cursor_ = (cursor_ + step) % lanes_;
      if (is_ready(cursor_)) return static_cast<int>(cursor_);
    }
    return -1;
  }
  template <typename IsReady>
  int next_by_priority(const IsReady& is_ready) {
    if (turns_left_-- == 0) draw_priorities();
    const auto found = std::find_if(by_priority_.begin(), by_priority_.end(), is_ready);
    return found == by_priority_.end() ? -1 : static_cast<int>(*found);
  }
  void draw_priorities();

  Order order_ = Order::kForward;
  std::mt19937_64 random_;
  unsigned lanes_ = 0;
  unsigned threads_ = 0;
  unsigned cursor_ = 0;      ///< the lane of the last turn, without priorities
  uint64_t period_ = 0;      ///< mean number of turns between changes of priority; 0: no priorities
  uint64_t turns_left_ = 0;  ///< until they do
  bool by_warp_ = false;     ///< the lanes of a warp have neighbouring priorities
  std::vector<unsigned> by_priority_;  ///< lanes
};

}  // namespace shoal::emulator
