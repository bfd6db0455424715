#include "tests/emulator/lanes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/emulator/block_memory.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/pending_copies.h"
#include "tests/emulator/turns.h"

namespace shoal::emulator {

thread_local constinit Index current_index;

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kResidentLanes = 512;

enum class State { kReady, kAtBlock, kAtWarp, kEnded };

struct Block;
struct Warp;

// Lanes and the scheduler share these structs without synchronisation that ThreadSanitizer could
// see, so this file is compiled without it.
struct Lane {
  Fiber* fiber = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned thread = 0;
  unsigned slot = 0;
  State state = State::kEnded;
  bool spins = false;
  bool early = false;
  Place place;  ///< where it waits
  uint32_t mask = 0;
  void* operand = nullptr;
};

struct Warp {
  Lane* lanes = nullptr;
  uint32_t exists = 0;   ///< a bit for each lane
  uint32_t arrived = 0;  ///< lanes that wait in a meeting
  unsigned meetings = 0;
  char order[2] = {};  ///< what a meeting synchronises, in turns
};

struct Block {
  Dim3 index;
  unsigned lanes = 0;
  unsigned arrived = 0;
  unsigned ended = 0;
  unsigned barriers = 0;
  bool any = false;
  bool result[2] = {};  ///< of the last two barriers
  Place place;          ///< of the barrier that lanes wait at
  char order[2] = {};
  char begun = 0, over = 0;  ///< what happens before all lanes, and after them
  unsigned char* memory = nullptr;
  const unsigned char* guard = nullptr;  ///< behind the memory
};

/// One multiprocessor: the blocks under way in one host thread. A lane keeps its fiber for all
/// blocks and launches, because making one is expensive.
class Multiprocessor {
 public:
  bool run(int device, const LaunchShape& shape, const std::function<void()>& body);
  void suspend() {
    running_->fiber->suspend();
    if (abandoned_) stop_lane();
  }
  Lane& lane() { return *running_; }
  LaneCopies& copies() { return copies_[running_->slot]; }
  const LaunchFacts& facts() const { return facts_; }
  const LaunchShape& shape() const { return shape_; }
  [[noreturn]] void abandon() {
    abandoned_ = true;
    stop_lane();
  }

 private:
  void make_room(unsigned blocks, unsigned threads);
  void begin_block(unsigned slot);
  void end_lane(Lane& lane);
  Lane* next_ready();
  bool step(Lane& lane);
  void report_stuck();
  static void run_lane(void* lane);
  [[noreturn]] void stop_lane();
  void stop_all();

  LaunchShape shape_;
  const std::function<void()>* body_ = nullptr;
  LaunchFacts facts_;
  Turns turns_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<LaneCopies> copies_;
  std::vector<Lane> lanes_;
  std::vector<Warp> warps_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<BlockMemory>> memories_;
  std::vector<uint64_t> order_;  ///< of the blocks
  size_t begun_ = 0;
  unsigned under_way_ = 0;
  unsigned spins_ = 0;
  bool abandoned_ = false;
  Lane* running_ = nullptr;
};

Multiprocessor& multiprocessor() {
  thread_local std::unique_ptr<Multiprocessor> mine = std::make_unique<Multiprocessor>();
  return *mine;
}

void Multiprocessor::make_room(unsigned blocks, unsigned threads) {
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  while (fibers_.size() < size_t{blocks} * threads) fibers_.push_back(std::make_unique<Fiber>());
  while (memories_.size() < blocks) memories_.push_back(std::make_unique<BlockMemory>());
  if (copies_.size() < fibers_.size()) copies_.resize(fibers_.size());
  lanes_.assign(size_t{blocks} * threads, {});
  warps_.assign(size_t{blocks} * warps, {});
  blocks_.assign(blocks, {});
  for (unsigned i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.fiber = fibers_[i].get();
    lane.slot = i;
    lane.block = &blocks_[i / threads];
    lane.thread = i % threads;
    lane.warp = &warps_[i / threads * warps + lane.thread / kWarp];
    if (lane.thread % kWarp == 0) lane.warp->lanes = &lane;
    lane.warp->exists |= 1U << (lane.thread % kWarp);
  }
}

/// Starts the next block of the launch in a slot that is free.
void Multiprocessor::begin_block(unsigned slot) {
  if (begun_ == order_.size()) return;
  const uint64_t index = order_[begun_++];
  Block& block = blocks_[slot];
  const Dim3 grid = shape_.grid;
  block.index = {static_cast<unsigned>(index % grid.x),
                 static_cast<unsigned>(index / grid.x % grid.y),
                 static_cast<unsigned>(index / grid.x / grid.y)};
  block.lanes = shape_.threads;
  block.arrived = block.ended = 0;
  // The memory is prepared after all lanes of the block that used it before have ended, and before
  // the lanes of this block begin.
  barrier_acquire(&block.over);
  block.memory = memories_[slot]->begin_block(shape_.memory);
  block.guard = memories_[slot]->guard();
  barrier_release(&block.begun);
  for (unsigned i = 0; i < shape_.threads; ++i)
    lanes_[slot * shape_.threads + i].state = State::kReady;
  for (unsigned i = 0; i < shape_.threads; i += kWarp)
    lanes_[slot * shape_.threads + i].warp->arrived = 0;
  ++under_way_;
}

void Multiprocessor::run_lane(void* argument) {
  auto& lane = *static_cast<Lane*>(argument);
  Multiprocessor& self = multiprocessor();
  barrier_acquire(&lane.block->begun);
  (*self.body_)();
  barrier_release(&lane.block->over);
}

void Multiprocessor::end_lane(Lane& lane) {
  lane.state = State::kEnded;
  Block& block = *lane.block;
  if (++block.ended < block.lanes) return;
  --under_way_;
  begin_block(static_cast<unsigned>(&block - blocks_.data()));
}

Lane* Multiprocessor::next_ready() {
  const int next = turns_.next([&](unsigned lane) { return lanes_[lane].state == State::kReady; });
  return next < 0 ? nullptr : &lanes_[static_cast<size_t>(next)];
}

/// Gives the lane its turn. False: the kernel was abandoned.
bool Multiprocessor::step(Lane& lane) {
  running_ = &lane;
  current_index = {{lane.thread, 0, 0}, lane.block->index, {shape_.threads, 1, 1}, shape_.grid};
  running_guard = lane.block->guard;
  lane.spins = false;
  if (lane.fiber->ended()) {
    lane.fiber->start(&run_lane, &lane);
  } else {
    lane.fiber->resume();
  }
  if (abandoned_) return false;
  if (lane.fiber->ended()) end_lane(lane);
  spins_ = lane.spins ? spins_ + 1 : 0;
  if (lane.spins) turns_.has_polled(lane.slot);
  if (spins_ > lanes_.size()) {  // all that can run only poll, for another process or thread
    ::usleep(20);                // no deadline: it only lets others run
    spins_ = 0;
  }
  return true;
}

/// No lane can run, and some have not ended. Names where two of them are.
void Multiprocessor::report_stuck() {
  const Lane* first = nullptr;
  std::string others;
  for (const Lane& lane : lanes_) {
    if (lane.state == State::kEnded) continue;
    if (first == nullptr) {
      first = &lane;
    } else if (others.empty() &&
               (lane.place.line != first->place.line || lane.state != first->state)) {
      others = ", lane " + std::to_string(lane.thread) + " at " + text_of(lane.place);
    }
  }
  if (others.empty()) others = ", and others have ended or never come";
  keep_report(Fault::kDivergentBarrier, first->place,
              "lane " + std::to_string(first->thread) + " waits there" + others);
}

bool Multiprocessor::run(int device, const LaunchShape& shape, const std::function<void()>& body) {
  shape_ = shape;
  body_ = &body;
  facts_.settings = &settings();
  facts_.capability = facts_.settings->capabilities[static_cast<size_t>(device)];
  facts_.tensor_core = facts_.settings->tensor_cores[static_cast<size_t>(device)];
  const uint64_t blocks = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  const uint64_t fit = std::max(1U, kResidentLanes / shape.threads);
  const auto resident = static_cast<unsigned>(std::min(blocks, fit));
  make_room(resident, shape.threads);
  turns_.begin(*facts_.settings, resident * shape.threads, shape.threads);
  order_ = turns_.order_of_blocks(blocks);
  begun_ = under_way_ = spins_ = 0;
  abandoned_ = false;
  for (unsigned i = 0; i < resident; ++i) {
    // In reverse, lanes have their turns from the last one on, which must be the last block's.
    begin_block(facts_.settings->order == Order::kReverse ? resident - 1 - i : i);
  }
  while (under_way_ > 0) {
    Lane* lane = next_ready();
    if (lane == nullptr) {
      report_stuck();
      abandoned_ = true;
    }
    if (lane == nullptr || !step(*lane)) {
      stop_all();
      break;
    }
  }
  running_guard = nullptr;
  for (Block& block : blocks_) barrier_acquire(&block.over);
  return !abandoned_;
}

/// The running lane has done all that it does, although it is in the middle of the kernel.
void Multiprocessor::stop_lane() {
  Fiber* fiber = running_->fiber;
  barrier_release(&running_->block->over);
  for (;;) fiber->suspend();
}

/// Ends a kernel whose lanes cannot go on.
void Multiprocessor::stop_all() {
  for (Lane& lane : lanes_) {
    running_ = &lane;
    if (!lane.fiber->ended()) lane.fiber->resume();
  }
  fibers_.clear();  // nobody resumes them again
}

/// Whether the settings plant a fault there.
bool is_skipped(const Place& place) {
  const Settings& now = *multiprocessor().facts().settings;
  return place.line == now.skip_line && text_of(place) == now.skip_barrier;
}

/// A lane in a meeting that another lane of its mask does not agree with.
void report_mask(const Lane& lane, const Lane& other) {
  report(Fault::kWrongMask, lane.place,
         "lane " + std::to_string(lane.thread) + " expects lane " + std::to_string(other.thread) +
             ", which is at " + text_of(other.place) + " with another mask");
}

}  // namespace

bool run_lanes(int device, const LaunchShape& shape, const std::function<void()>& body) {
  return multiprocessor().run(device, shape, body);
}

bool meet_block(int value, const Place& place) {
  if (is_skipped(place)) return value != 0;
  Lane& lane = multiprocessor().lane();
  Block& block = *lane.block;
  const unsigned turn = block.barriers % 2;
  if (block.arrived == 0) {
    block.any = false;
    block.place = place;
  } else if (block.place.line != place.line || std::strcmp(block.place.file, place.file) != 0) {
    report(Fault::kDivergentBarrier, place, "other lanes wait at " + text_of(block.place));
  }
  block.any = block.any || value != 0;
  barrier_release(&block.order[turn]);
  if (++block.arrived < block.lanes) {
    lane.state = State::kAtBlock;
    lane.place = place;
    multiprocessor().suspend();
  } else {
    block.result[turn] = block.any;
    block.arrived = 0;
    ++block.barriers;
    for (Lane* other = &lane - lane.thread; other != &lane - lane.thread + block.lanes; ++other)
      other->state = State::kReady;
  }
  barrier_acquire(&block.order[turn]);
  return block.result[turn];
}

void meet_warp(uint32_t mask, bool orders, void* operand, void (*compute)(void* const operands[]),
               const Place& place) {
  if (orders && is_skipped(place)) return;
  Lane& lane = multiprocessor().lane();
  Warp& warp = *lane.warp;
  const uint32_t bit = 1U << (lane.thread % kWarp);
  if ((mask & bit) == 0 || (mask & ~warp.exists) != 0)
    report(Fault::kWrongMask, place, "the mask does not hold the lane, or holds one that is not");
  lane.mask = mask;
  lane.place = place;
  lane.operand = operand;
  char* const order = &warp.order[warp.meetings % 2];
  if (orders) barrier_release(order);
  warp.arrived |= bit;
  if ((warp.arrived & mask) != mask) {
    lane.state = State::kAtWarp;
    multiprocessor().suspend();
  } else {
    void* operands[kWarp] = {};
    for (unsigned i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1) == 0) continue;
      Lane& other = warp.lanes[i];
      if (other.mask != mask || other.place.line != place.line) report_mask(lane, other);
      operands[i] = other.operand;
      other.state = State::kReady;
    }
    warp.arrived &= ~mask;
    ++warp.meetings;
    compute(operands);
  }
  if (orders) barrier_acquire(order);
}

void let_others_run() {
  multiprocessor().lane().spins = true;
  multiprocessor().suspend();
}

unsigned char* memory_of_block() {
  return multiprocessor().lane().block->memory;
}

size_t bytes_of_block() {
  return multiprocessor().shape().memory;
}

const LaunchFacts& facts_of_launch() {
  return multiprocessor().facts();
}

LaneCopies& copies_of_lane() {
  return multiprocessor().copies();
}

bool& is_early() {
  return multiprocessor().lane().early;
}

void check_not_early(const Place& place, const char* what) {
  if (is_early()) report(Fault::kBeforeOthers, place, what);
}

void abandon_kernel() {
  multiprocessor().abandon();
}

}  // namespace shoal::emulator
