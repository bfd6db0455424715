#include "runtime/comm/slots/cma_slots.h"

#include <algorithm>
#include <unistd.h>

#include "runtime/base/deadline.h"

namespace shoal {
namespace {

// After this many torn reads in a row, the writer must have been stopped in the middle of an
// update.
constexpr int kTornReads = 1000;
// Even the shortest sleep takes about twice this long.
constexpr int64_t kFirstPauseUs = 20;
constexpr int64_t kLongestPauseUs = 1000;

/// Release order: visible only after `back` and after the data that these words describe.
template <class Word>
void store(Word& word, Word value) {
  std::atomic_ref<Word>(word).store(value, std::memory_order_release);
}

}  // namespace

const std::byte* CmaSlots::mirror(int rank) const {
  const size_t index = static_cast<size_t>(rank < group_->world.rank ? rank : rank - 1) + 2;
  return group_->memory.data() + kCmaControlBytes + index * group_->slot_bytes;
}

int CmaSlots::fetch(SlotOf of, SlotRows rows, int mirror_rank) const {
  if (rows.bytes == 0) return 0;
  // Read everything in one piece if there is little between the rows. Usually there is one row, or
  // the rows are whole planes.
  if (rows.rows == 1 || rows.bytes * 2 >= rows.pitch) {
    rows.bytes += (rows.rows - 1) * rows.pitch;
    rows.rows = 1;
  }
  std::byte* to = const_cast<std::byte*>(mirror(mirror_rank));
  const size_t from = group_->slot_offset(of.step);
  constexpr size_t kAtOnce = 64;
  iovec local[kAtOnce];
  iovec remote[kAtOnce];
  for (size_t row = 0; row < rows.rows;) {
    size_t pieces = 0;
    for (; pieces < kAtOnce && row < rows.rows; ++pieces, ++row) {
      const size_t at = rows.offset + row * rows.pitch;
      local[pieces] = {to + at, rows.bytes};
      remote[pieces] = {reinterpret_cast<void*>(from + at), rows.bytes};
    }
    if (const int error = group_->peers.read_pieces(of.rank, {local, pieces}, {remote, pieces});
        error != 0) {
      return error;
    }
  }
  return 0;
}

PolledFlags::PolledFlags(const CmaGroup& group)
    : group_(&group), seen_(static_cast<size_t>(group.world.size)) {}

/// Returns the rank's word, with kClosed set if the rank has gone.
uint32_t PolledFlags::word(int rank) const {
  CmaControl& seen = seen_[rank];
  for (int attempt = 0; attempt < kTornReads; ++attempt) {
    CmaControl now;
    const int error = group_->peers.read(rank, 0, &now, sizeof now);
    if (error != 0 || now.nonce != group_->peers.hello(rank).nonce) return seen.word | kClosed;
    // Acquire: later reads of the peer's memory see everything that it wrote before this word.
    if (std::atomic_ref<uint32_t>(now.front).load(std::memory_order_acquire) != now.back) continue;
    seen = now;
    break;
  }
  return seen.word;
}

template <class Change>
void PolledFlags::update(const Change& change) {
  CmaControl& mine = group_->control();
  const uint32_t number = mine.front + 1;
  std::atomic_ref<uint32_t>(mine.back).store(number, std::memory_order_relaxed);
  change(mine);
  std::atomic_ref<uint32_t>(mine.front).store(number, std::memory_order_release);
}

void PolledFlags::publish(uint32_t steps, uint64_t tag) {
  update([&](CmaControl& mine) {
    store(mine.tags[(steps - 1) % 2], tag);
    store(mine.word, steps * kStep);
  });
}

void PolledFlags::close() {
  update([](CmaControl& mine) { store(mine.word, mine.word | kClosed); });
}

void PolledFlags::set_done(uint32_t steps) {
  update([&](CmaControl& mine) { store(mine.done, steps); });
}

void PolledFlags::sleep(int rank, uint32_t steps, int timeout_ms) const {
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  for (int64_t pause_us = kFirstPauseUs; !deadline.passed();
       pause_us = std::min(pause_us * 2, kLongestPauseUs)) {
    ::usleep(static_cast<useconds_t>(pause_us));
    const uint32_t now = word(rank);
    if (reached(now, steps) || (now & kClosed)) return;
  }
}

}  // namespace shoal
