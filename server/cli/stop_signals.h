#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// SIGTERM, SIGINT and SIGQUIT as an event. So is SIGHUP if this process has a controlling
/// terminal, which is closed then; otherwise it is a call and a line in the log. SIGUSR1, SIGUSR2
/// and SIGALRM are ignored, and so is what was ignored when the program started. Make it before any
/// other thread exists: it blocks the signals in the calling thread, and so in all threads that
/// this one starts, and receives them in a thread of its own. The first signal makes wait() return
/// true. Before started() there is nothing to finish, so it ends the process at once with exit code
/// 0; a second signal always does, but not a second SIGHUP, which both the kernel and a shell may
/// send.
class StopSignals {
 public:
  /// What has to be done before the process ends at once, with the number of the signal that ends
  /// it.
  using Tidy = std::function<void(int signal)>;

  /// tidy is called from the thread that receives the signals and must end by itself. It may end
  /// the process with another exit code.
  static Result<std::unique_ptr<StopSignals>> install(Tidy tidy);
  ~StopSignals();  ///< from here on signals stay pending and are ignored

  /// From now on `call` is called for each SIGHUP that does not stop the server. The thread that
  /// receives the signals calls it, so that it must not block. nullptr: nothing is called any more.
  void on_hangup(std::function<void()> call);

  /// Call it when the server is ready. From then on the first signal asks it to finish.
  void started() { started_ = true; }

  /// Waits for the first signal. Returns false if the deadline passes first.
  bool wait(Deadline deadline);

 private:
  StopSignals(Fd signals, Fd requested, Fd leave, bool has_terminal, Tidy tidy);
  void receive();
  void hang_up();

  Fd signals_;    // signalfd
  Fd requested_;  // eventfd: the first signal has arrived
  Fd leave_;      // eventfd: the thread should end
  const bool has_terminal_;
  const Tidy tidy_;
  std::atomic<bool> started_{false};
  std::mutex mutex_;
  std::function<void()> hangup_;
  std::thread thread_;
};

}  // namespace shoal
