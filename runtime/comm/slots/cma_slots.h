#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/slots/cma_peers.h"
#include "runtime/comm/slots/mapped_slots.h"
#include "runtime/memory/shm_segment.h"

namespace shoal {

/// A rank's control words at the start of its private mapping, where the peers read them. A peer's
/// read is a copy by the kernel, which may copy in any pieces, and on a weakly ordered processor
/// (Arm) in any order. So a copy may hold words of different updates, and `check` tells: it is a
/// hash of the others, together with the number of the update.
struct alignas(64) CmaControl {
  uint64_t nonce;    ///< CmaHello::nonce; never changes
  uint32_t updates;  ///< how often the words have changed
  uint32_t word;
  uint32_t done;
  uint32_t unused;
  uint64_t tags[2];
  int64_t ready_at[2];  ///< as in RankControl, but always stated
  uint64_t check;       ///< 0 in fresh memory, where all the others are 0

  uint64_t right_check() const;
};
static_assert(sizeof(CmaControl) == 64);

/// Where a rank's first slot begins in its mapping.
inline constexpr size_t kCmaControlBytes = 4096;

/// What a rank of a cma group has: its own mapping (control words, its two slots, and a mirror of
/// each peer's slot), access to the peers' mappings, and the page with the control words of all
/// ranks if they share one.
struct CmaGroup {
  World world;
  size_t slot_bytes = 0;
  PrivateMemory memory;
  ShmSegment page;
  CmaPeers peers{{}};

  CmaControl& control() const { return *reinterpret_cast<CmaControl*>(memory.data()); }
  size_t slot_offset(uint32_t step) const { return kCmaControlBytes + step % 2 * slot_bytes; }
};

/// Slots in the ranks' private memory. A peer's slot is copied before it is used.
class CmaSlots {
 public:
  static constexpr bool kDirect = false;

  explicit CmaSlots(std::unique_ptr<CmaGroup> group) : group_(std::move(group)) {}

  std::byte* own(uint32_t step) const { return group_->memory.data() + group_->slot_offset(step); }
  /// Copies rows of a peer's slot to the same place in the mirror of `mirror_rank`. Returns 0 or an
  /// errno (see CmaPeers::read).
  int fetch(SlotOf of, SlotRows rows, int mirror_rank) const;
  const std::byte* mirror(int rank) const;
  int copy(SlotOf of, std::byte* to, size_t bytes) const {
    return group_->peers.read(of.rank, group_->slot_offset(of.step), to, bytes);
  }
  int check(int rank) const { return group_->peers.check(rank); }

 private:
  std::unique_ptr<CmaGroup> group_;
};

/// Control words of ranks that cannot share a page. Each poll is a system call. A rank cannot wake
/// another, so a long wait sleeps for a while and polls again. Used by one thread.
class PolledFlags {
 public:
  static constexpr bool kPollsAreCalls = true;

  /// group must outlive this object.
  explicit PolledFlags(const CmaGroup& group);

  uint32_t word(int rank) const;
  uint64_t tag(int rank, uint32_t step) const { return seen_[rank].tags[step % 2]; }
  RunningClock::duration ready_at(int rank, uint32_t step) const {
    return RunningClock::duration(seen_[rank].ready_at[step % 2]);
  }
  void publish(uint32_t steps, uint64_t tag);
  void close();
  void set_done(uint32_t steps);
  uint32_t done(int rank) const { return word(rank), seen_[rank].done; }
  const CpuMask& cpus(int rank) const { return group_->peers.hello(rank).cpus; }
  void sleep(int rank, uint32_t steps, int timeout_ms) const;

 private:
  template <class Change>
  void update(const Change& change);

  const CmaGroup* group_;
  mutable std::vector<CmaControl> seen_;  // by rank: the last complete update that was read
};

}  // namespace shoal
