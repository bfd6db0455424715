#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/emulator/block_memory.h"
#include "tests/emulator/lanes.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/report.h"

/// The copies that a lane has begun with copy_async. They are made by the lane itself, either where
/// it calls copy_async or where it waits, as EMULATED_GPU_COPIES says: a device may do either.
namespace shoal::emulator {

/// A copy of 16 bytes. If from is nullptr, zeros are written.
struct PendingCopy {
  void* to = nullptr;
  const void* from = nullptr;
};
using CopyGroup = std::vector<PendingCopy>;
/// The groups that one lane has committed, and after them the group that it has not committed yet.
using LaneCopies = std::vector<CopyGroup>;
LaneCopies& copies_of_lane();

inline void make_copy(const PendingCopy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, 16);
  } else {
    std::memcpy(copy.to, copy.from, 16);
  }
}

inline void add_copy(void* to, const void* from) {
  if (facts_of_launch().settings->copies == Copies::kEarly) return make_copy({to, from});
  LaneCopies& groups = copies_of_lane();
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from});
}
/// If not `take`, zeros are written, and nothing is read.
inline void begin_copy(void* to, const void* from, bool take, const Place& place) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0)
    report(Fault::kMisaligned, place, "copy_async to block memory");
  if (take) check_read(from, 16, place);
  check_block_memory(to, 16, place);
  add_copy(to, take ? from : nullptr);
}
inline void commit_copies() {
  if (facts_of_launch().settings->copies == Copies::kEarly) return;
  LaneCopies& groups = copies_of_lane();
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
/// Makes the copies of all committed groups but the last `left`.
inline void finish_copies(int left) {
  if (facts_of_launch().settings->copies == Copies::kEarly) return;
  LaneCopies& groups = copies_of_lane();
  while (static_cast<int>(groups.size()) > left + 1) {
    for (const PendingCopy& copy : groups.front()) make_copy(copy);
    groups.erase(groups.begin());
  }
}
/// At the end of a lane. Copies that nobody waited for are lost.
inline void end_of_copies() {
  if (facts_of_launch().settings->copies == Copies::kLate) copies_of_lane().clear();
}

}  // namespace shoal::emulator
