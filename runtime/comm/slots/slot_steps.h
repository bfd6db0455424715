#pragma once
#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "runtime/base/cat.h"
#include "runtime/base/counted.h"
#include "runtime/comm/collective_tag.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/slot_flags.h"
#include "runtime/comm/spin.h"
#include "runtime/comm/wait_time.h"

namespace shoal {

struct SlotSettings {
  const char* name;
  World world;
  size_t slot_bytes;
  int64_t timeout_ms;
  Interrupted interrupted;
};

/// The steps that the ranks of a group take together: in each, a rank publishes its slot and waits
/// until every peer has published its own. This class decides how long a rank polls and sleeps, and
/// how a step fails. slot_communicator.h decides what the slots hold. If Slots::kDirect is false,
/// peers read a rank's slots with system calls, so a rank that leaves first waits until its slots
/// have been read.
template <class Flags, class Slots>
class SlotSteps {
 public:
  SlotSteps(SlotSettings settings, Slots slots, Flags flags)
      : settings_(std::move(settings)), slots_(std::move(slots)), flags_(std::move(flags)) {
    // `done` counts from 1, because 0 means that the rank has yet to open.
    if constexpr (!Slots::kDirect) flags_.set_done(1);
  }
  ~SlotSteps() {
    flags_.close();
    if constexpr (!Slots::kDirect) {
      if (failed_.ok()) linger();
    }
  }
  SlotSteps(const SlotSteps&) = delete;
  SlotSteps& operator=(const SlotSteps&) = delete;

  const SlotSettings& settings() const { return settings_; }
  Slots& slots() { return slots_; }
  /// Number of steps published so far, which is also the number of the next step. It wraps.
  uint32_t next() const { return step_; }

  /// begin and end enclose each collective. Once a step has failed, begin returns that error.
  Status begin(uint64_t tag);
  Status end() {
    if constexpr (!Slots::kDirect) flags_.set_done(step_ + 1);
    return {};
  }
  /// One step: publishes this rank's slot and returns when every peer has published its own.
  Status exchange();
  /// Fails the group because the memory of a peer could not be read. error: the errno of the
  /// attempt, or 0 if the peer itself has closed its end.
  Status lost(int peer, int error);

  WaitState wait_state() const {
    return {collectives_, collectives_ == 0 ? "" : tag_text(tag_),
            !failed_.ok() ? waited_for_
            : waiting_    ? missing()
                          : std::vector<int>()};
  }
  const Waited& waited() const { return wait_time_.total(); }

 private:
  static constexpr size_t kPrefetchBytes = 8 * 1024;
  static constexpr int kPolls = 16;  // between two looks at the clock

  Status wait_for(int peer);
  Status wait_slowly(int peer);
  Status sleep_for(int peer, Deadline deadline);
  Status fail(Status status);
  Status timed_out();
  void linger();
  std::vector<int> missing() const;
  std::string here() const {
    return cat(settings_.name, " collective ", collectives_, " (", tag_text(tag_), ")");
  }

  const SlotSettings settings_;
  Slots slots_;
  Flags flags_;
  int64_t spin_ns_ = -1;  // known after the first step, when all ranks have published their CPUs
  uint32_t step_ = 0;     // steps published so far; wraps
  uint64_t collectives_ = 0;  // begun so far, for messages
  uint64_t tag_ = 0;          // of the running collective
  // The deadline of the running collective. It is set when the collective first sleeps, because
  // most collectives never need it.
  std::optional<Deadline> until_;
  WaitTime wait_time_;
  bool waiting_ = false;         // while asleep for a peer
  Status failed_;                // the first error; every later call returns it
  std::vector<int> waited_for_;  // the missing ranks at the time of that error
};

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::begin(uint64_t tag) {
  if (!failed_.ok()) return failed_;  // wait_state still describes the collective that failed
  tag_ = tag;
  ++collectives_;
  until_.reset();
  return {};
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::exchange() {
  flags_.publish(++step_, tag_);
  // The peers' caches still hold the next slot's lines, because they have read them. Fetch them for
  // writing while the peers' numbers arrive: 5-10 % at 8 KiB.
  const std::byte* next = slots_.own(step_);
  for (size_t at = 0; at < kPrefetchBytes && at < settings_.slot_bytes; at += 64)
    prefetch_for_write(next + at);
  for (int distance = 1; distance < settings_.world.size; ++distance) {
    wait_time_.only_previous_is_missing(distance == settings_.world.size - 1);
    SHOAL_RETURN_IF_ERROR(wait_for((settings_.world.rank + distance) % settings_.world.size));
  }
  if (spin_ns_ < 0) {
    std::vector<CpuMask> masks;
    for (int rank = 0; rank < settings_.world.size; ++rank) masks.push_back(flags_.cpus(rank));
    spin_ns_ = spin_budget_ns(masks);
  }
  return {};
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::wait_for(int peer) {
  if (!reached(flags_.word(peer), step_)) SHOAL_RETURN_IF_ERROR(wait_slowly(peer));
  const uint64_t tag = flags_.tag(peer, step_ - 1);
  if (tag == tag_) return {};
  return fail(Status::error(Code::kInternal,
                            cat(settings_.name, " collective ", collectives_, ": this rank is in ",
                                tag_text(tag_), ", rank ", peer, " in ", tag_text(tag))));
}

/// Polls for the spin budget, then sleeps until the deadline.
template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::wait_slowly(int peer) {
  const auto polled = [&] {
    for (int i = 0; i < kPolls; ++i) {
      if (reached(flags_.word(peer), step_)) return true;
      cpu_relax();
    }
    return false;
  };
  const auto came = [&] {
    wait_time_.come(flags_.ready_at(peer, step_ - 1));
    return Status();
  };
  // Beside polls that are system calls the clock costs nothing.
  if constexpr (Flags::kPollsAreCalls) {
    wait_time_.begin();
    if (polled()) return came();
  } else {
    // This is the usual case. It does without the clock, which costs as much as a few polls.
    if (polled()) return {};
    wait_time_.begin();
  }
  const auto poll_until = Clock::now() + std::chrono::nanoseconds(std::max<int64_t>(spin_ns_, 0));
  do {
    if (polled()) return came();
    wait_time_.look();
  } while (Clock::now() < poll_until);
  if (!until_) until_ = Deadline::after_ms(settings_.timeout_ms);
  waiting_ = true;
  Status status = sleep_for(peer, *until_);
  waiting_ = false;
  return status;
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::sleep_for(int peer, Deadline deadline) {
  NextLook look;
  for (;;) {
    const uint32_t seen = flags_.word(peer);
    if (reached(seen, step_)) {
      wait_time_.come(flags_.ready_at(peer, step_ - 1));
      return {};
    }
    wait_time_.look();
    if (seen & kClosed) return lost(peer, 0);
    if (deadline.passed()) return fail(timed_out());
    if (look.due()) {
      if (settings_.interrupted) {
        if (Status stop = settings_.interrupted(); !stop.ok()) return fail(std::move(stop));
      }
      if constexpr (!Slots::kDirect) {
        if (const int error = slots_.check(peer); error != 0) return lost(peer, error);
      }
    }
    flags_.sleep(peer, step_, deadline.remaining_ms(kSliceMs));
  }
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::fail(Status status) {
  waited_for_ = missing();
  failed_ = std::move(status);
  // Peers that leave need not wait for this rank to read their slots.
  if constexpr (!Slots::kDirect) flags_.close();
  return failed_;
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::lost(int peer, int error) {
  if (error == EPERM || error == ENOSYS) {
    return fail(Status::error(Code::kPermissionDenied,
                              cat(here(), ": reading rank ", peer, "'s memory"), error));
  }
  return fail(Status::error(Code::kUnavailable, cat(here(), ": rank ", peer, " has closed its end"),
                            error));
}

template <class Flags, class Slots>
Status SlotSteps<Flags, Slots>::timed_out() {
  std::string text;
  for (const int rank : missing()) {
    const uint32_t behind = (step_ * kStep - (flags_.word(rank) & ~(kStep - 1))) / kStep;
    text +=
        cat(text.empty() ? "rank " : ", rank ", rank, " (", counted(behind, "step"), " behind)");
  }
  return Status::error(Code::kDeadlineExceeded, cat(here(), ", step ", step_, ": waited ",
                                                    settings_.timeout_ms, " ms for ", text));
}

template <class Flags, class Slots>
std::vector<int> SlotSteps<Flags, Slots>::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < settings_.world.size; ++rank) {
    if (rank != settings_.world.rank && !reached(flags_.word(rank), step_)) ranks.push_back(rank);
  }
  return ranks;
}

/// Waits until every peer has read this rank's slots or has left. This is necessary because the
/// slots vanish when this rank leaves. Gives up after the timeout, and when interrupted.
template <class Flags, class Slots>
void SlotSteps<Flags, Slots>::linger() {
  const Deadline deadline = Deadline::after_ms(settings_.timeout_ms);
  NextLook look;
  for (int rank = 0; rank < settings_.world.size; ++rank) {
    if (rank == settings_.world.rank) continue;
    for (int64_t pause_us = 20; static_cast<int32_t>(flags_.done(rank) - (step_ + 1)) < 0;
         pause_us *= 2) {
      if ((flags_.word(rank) & kClosed) || deadline.passed()) break;
      if (look.due()) {
        if constexpr (!Slots::kDirect) {
          if (slots_.check(rank) != 0) break;
        }
        if (settings_.interrupted && !settings_.interrupted().ok()) return;
      }
      pause_us = std::min<int64_t>(pause_us, 1000);
      ::usleep(static_cast<useconds_t>(pause_us));
    }
  }
}

}  // namespace shoal
