#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/control/channel.h"
#include "runtime/rank/rank_work.h"
#include "runtime/rank/test_fault.h"
#include "runtime/rank/watched_communicator.h"
#include "runtime/transport/rungs/rung.h"

namespace shoal {

/// The whole life of one rank, in a process of its own that the front has spawned: reads RankStart,
/// connects to the other ranks, proves the transport, lets the work begin, then does one step after
/// the other until the front ends it or is gone. It reports each phase that it enters and shows
/// that it is alive while something takes long. If it fails, it reports why, what it was waiting
/// for and what is to blame.
class Rank final : private RankContext {
 public:
  /// The time that decides when a sign of life is due.
  using TimeSource = Clock::time_point (*)();

  /// Takes ownership of the descriptor. `work` must live as long as the rank. now: for tests, which
  /// move the time.
  Rank(int control_fd, RankWork& work, TimeSource now = &Clock::now)
      : channel_(Fd(control_fd)), work_(work), now_(now) {}

  /// Runs the rank to its end. It ignores kFrontSignals, because only the front acts on a signal
  /// to the process group, and it dies with the thread that spawned it. Returns the
  /// process's exit code: 0 after Shutdown or if the front is gone, 1 after a failure that it has
  /// reported, kOtherBuildExitCode if the front is of another build.
  int run();

  /// Whether the process must then end by std::_Exit: the rank has failed with a device, and a
  /// thread that it has left inside NCCL, or a kernel, may still use what destructors end.
  bool must_end_at_once() const { return failed_ && device_ != nullptr; }

 private:
  const RankStart& start() const override { return start_; }
  Communicator& communicator() override { return *communicator_; }
  Result<std::vector<std::string>> exchange(std::string mine) override;
  Status enter(Phase phase) override;
  Status loaded(const LoadProgress& progress) override;
  std::shared_ptr<Device> device() override { return device_; }
  Status moved() override;
  Status waits(const std::string& where, uint64_t mark, bool sums) override;

  Status serve();
  Status connect();
  Status self_test_transport();
  Status open_device(const Rung* rung);
  Status compiled();
  Result<std::unique_ptr<Communicator>> open();
  Result<std::unique_ptr<Communicator>> on_device(std::unique_ptr<Communicator> host);
  Status obey();
  Status take_step(const Step& step);
  Status tell_step_times(Clock::duration step);

  template <typename Message>
  Status send(const Message& message);
  Result<std::optional<FrontMessage>> next(int spin_us);
  Status complete_part(bool waits);
  Status interrupted();
  Status still_waiting();
  RankFailure failure_of(const Status& status) const;
  RankWait wait() const;

  Channel channel_;
  RankWork& work_;
  const TimeSource now_;
  RankStart start_;
  std::deque<FrontMessage> kept_;  // messages that came while a collective waited
  std::shared_ptr<Device> device_;
  std::unique_ptr<WatchedCommunicator> communicator_;
  TestFault test_fault_;
  Phase phase_ = Phase::kSpawn;
  bool failed_ = false;
  uint64_t step_ = 0;
  uint64_t steps_begun_ = 0;  // of this start
  bool in_exchange_ = false;
  uint64_t parts_ = 0;  // of the work that have been completed
  uint64_t parts_before_step_ = 0;
  std::string where_;  // what this rank waits for, as it has said last; empty: nothing
  std::optional<DeviceMark> device_mark_;  // of then, if it is a device
  bool said_waits_ = false;                // the front believes that this rank waits
  int loaded_percent_ = -1;
  StepTimes untold_;               // of the steps that the front does not know yet
  Clock::duration spent_told_{0};  // in collectives, as the front knows it
  Waited waited_told_;             // likewise; 0 if nobody can tell
  Clock::time_point times_told_at_;
  Clock::time_point said_at_;  // by now_(), when it last showed a sign of life in this phase
};

}  // namespace shoal
