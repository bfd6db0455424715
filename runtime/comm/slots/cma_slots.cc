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

/// The data that a word describes is visible before the word is.
template <class Word>
void store(Word& word, Word value) {
  std::atomic_ref<Word>(word).store(value, std::memory_order_release);
}

// ThreadSanitizer does not understand fences, and the compiler warns of it. Nothing is lost: it
// does not see what the kernel copies from another process either.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
/// Later reads of the peer's memory see everything that it wrote before the words that this thread
/// has read. An acquiring load would order only itself; this orders the kernel's copies too.
void acquire() {
  std::atomic_thread_fence(std::memory_order_acquire);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace

uint64_t CmaControl::right_check() const {
  uint64_t hash = 0;
  for (const uint64_t value :
       {uint64_t{updates}, uint64_t{word}, uint64_t{done}, tags[0], tags[1],
        static_cast<uint64_t>(ready_at[0]), static_cast<uint64_t>(ready_at[1])}) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
  }
  return hash;
}

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
    if (now.check != now.right_check()) continue;
    acquire();
    seen = now;
    break;
  }
  return seen.word;
}

template <class Change>
void PolledFlags::update(const Change& change) {
  CmaControl& mine = group_->control();
  CmaControl next = mine;
  ++next.updates;
  change(next);
  store(mine.updates, next.updates);
  store(mine.tags[0], next.tags[0]);
  store(mine.tags[1], next.tags[1]);
  store(mine.ready_at[0], next.ready_at[0]);
  store(mine.ready_at[1], next.ready_at[1]);
  store(mine.done, next.done);
  store(mine.word, next.word);
  store(mine.check, next.right_check());
}

void PolledFlags::publish(uint32_t steps, uint64_t tag) {
  update([&](CmaControl& next) {
    next.tags[(steps - 1) % 2] = tag;
    next.ready_at[(steps - 1) % 2] = RunningClock::wall().count();
    next.word = steps * kStep;
  });
}

void PolledFlags::close() {
  update([](CmaControl& next) { next.word |= kClosed; });
}

void PolledFlags::set_done(uint32_t steps) {
  update([&](CmaControl& next) { next.done = steps; });
}

void PolledFlags::sleep(int rank, uint32_t steps, int timeout_ms) const {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (int64_t pause_us = kFirstPauseUs; Clock::now() < end;
       pause_us = std::min(pause_us * 2, kLongestPauseUs)) {
    ::usleep(static_cast<useconds_t>(pause_us));
    const uint32_t now = word(rank);
    if (reached(now, steps) || (now & kClosed)) return;
  }
}

}  // namespace shoal
