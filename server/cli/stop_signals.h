#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// SIGTERM and SIGINT as an event. Make it before any other thread exists: it blocks both signals
/// in the calling thread and so in all that come from it, and a thread of its own receives them.
/// The first one is told to wait(); before started() there is nothing to finish and it ends the
/// process at once with code 0, as the second one always does.
class StopSignals {
 public:
  static Result<std::unique_ptr<StopSignals>> install();
  ~StopSignals();  ///< from here on the signals are queued, and nobody looks

  /// From now on the first signal is a request to finish.
  void started() { started_ = true; }

  /// Waits for the first signal; false when the deadline passes before.
  bool wait(Deadline deadline);

 private:
  StopSignals(Fd signals, Fd requested, Fd leave);
  void receive();

  Fd signals_;    // signalfd
  Fd requested_;  // eventfd: the first signal came
  Fd leave_;      // eventfd: the thread may end
  std::atomic<bool> started_{false};
  std::thread thread_;
};

}  // namespace shoal
