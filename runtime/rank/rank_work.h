#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/control/messages.h"
#include "runtime/device/device.h"

namespace shoal {

/// What a rank offers to its work, and what the work reports to it. The work calls it from the
/// rank's own thread. It lives longer than the work's last call.
class RankContext {
 public:
  virtual ~RankContext() = default;

  /// The front's first message: this rank's place in the group, and in `work` the bytes for the
  /// work.
  virtual const RankStart& start() const = 0;

  /// The communicator, which is connected and has passed the self-test. A group of one rank also
  /// has a communicator.
  virtual Communicator& communicator() = 0;

  /// This rank's device, selected for the rank's thread. nullptr: neither the work nor the
  /// transport needs one. With a device, communicator().on_devices() is never nullptr: it sums on
  /// devices, and a rank without peers has one too.
  virtual std::shared_ptr<Device> device() = 0;

  /// Gives every rank the bytes of all ranks, in rank order, by way of the front. It waits until
  /// all have called it, so every rank must, in begin(): before kTouch, or in kWarmUp if the ranks
  /// have just waited for each other, because silence counts as trouble there. For a few bytes.
  virtual Result<std::vector<std::string>> exchange(std::string mine) = 0;

  /// Call this when the work begins kTouch or kWarmUp, in this order; each may be left out. The
  /// work is in kLoad when it begins.
  /// For kWarmUp it waits until all ranks have called it, because a rank that is ready early would
  /// otherwise wait in a collective, where silence counts as trouble. After an error the work must
  /// end.
  virtual Status enter(Phase phase) = 0;

  /// Reports how far the loading is. Cheap to call often.
  virtual Status loaded(const LoadProgress& progress) = 0;

  /// Shows that the work has completed another part. Call it between the parts of anything that may
  /// take longer than the front waits: 15 s of silence in kWarmUp (60 s with --device cuda, and
  /// never more than a quarter of --startup-timeout), --step-timeout in a step. A part of a step
  /// that uses the processor all the time may take ten times as long. Each collective that succeeds
  /// counts as a part by itself. Cheap to call often. UNAVAILABLE: the front has given up or is
  /// gone, and the work must end.
  virtual Status moved() = 0;

  /// Shows that the work waits for its device, which may be waiting for other ranks. Call it about
  /// every 100 ms of such a wait, and before a call that may wait by itself, because the rank
  /// cannot say so from within. What it uses of the processor is no progress from then on, until
  /// moved(). `where` says for people what the work waits for: "its GPU in layer 5, mlp".
  /// `mark`: how far the device is in the step, in numbers that mean the same on all ranks. A
  /// greater one than in the last call is progress. `sums`: the device is where it sums over ranks,
  /// which is the only place in which it waits for others. UNAVAILABLE: the front has given up or
  /// is gone, and the work must end.
  virtual Status waits(const std::string& where, uint64_t mark, bool sums) = 0;
};

/// What the ranks of a group compute. All calls come from one thread of the rank's process.
class RankWork {
 public:
  virtual ~RankWork() = default;

  /// Called once, after the transport has been proven. Returns what the front is to know about the
  /// work (Ready::about). The context stays valid for all later calls. An error ends the rank, and
  /// with it the group.
  virtual Result<std::string> begin(RankContext& context) = 0;

  /// Does one step; every rank gets the same bytes. What rank 0 returns goes to the front; what the
  /// others return is not read. An error ends the rank, and with it the group.
  virtual Result<std::string> step(uint64_t number, std::string_view plan) = 0;
};

}  // namespace shoal
