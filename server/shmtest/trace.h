#pragma once
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// Runs in a process that pid 1 has just forked, before it becomes the command: asks pid 1 to trace
/// it, and waits until that is done or refused. The other end of the socket belongs to pid 1.
void offer_trace(int socket);

/// Traces the command and every process and thread that comes of it, so that the kernel tells pid 1
/// how each of them ends, whoever its parent is. Nothing stops but at a start of a process, at its
/// end and at a signal, which is then delivered unchanged.
///
/// The kernel allows one tracer only. So when a process calls ptrace() itself (a debugger,
/// LeakSanitizer, a crash handler), that call waits until all processes are let go, and tracing is
/// over.
///
/// All calls must come from the thread that called begin().
class Tracer {
 public:
  /// Not tracing.
  Tracer() = default;

  /// Answers offer_trace(). If the kernel refuses, note() says so afterwards.
  void begin(int socket, pid_t command);

  /// A descriptor to poll for POLLIN, -1 for none. Call look() with what poll() returned for it.
  int announcements() const { return listener_.get(); }
  void look(short revents);

  /// Handles a process that waitpid() reports as stopped.
  void stopped(pid_t pid, int status);
  /// Handles the end of a process, traced or not, as waitpid() reports it.
  void ended(pid_t pid, int status);

  /// True while processes are being let go. Call look() at least every millisecond or so then.
  bool ending() const { return state_ == State::kEnding; }

  /// Sends the records "trace", "trace_note" and "sigbus" (outcome.h).
  void report(int fd) const;

 private:
  enum class State { kOff, kOn, kEnding, kEnded };

  void receive();
  void end_for(pid_t caller);
  void let_go_of_the_rest();
  void note_sigbus(pid_t thread);

  State state_ = State::kOff;
  std::string note_;
  Fd listener_;                 // of announce_ptrace()
  std::vector<uint64_t> held_;  // calls of ptrace() that wait for an answer
  Deadline patience_ = Deadline::infinite();
  std::map<pid_t, std::string> got_sigbus_;  // processes that may die of one, as "PID name"
  bool sigbus_ = false;
  std::string sigbus_process_;
};

}  // namespace shoal::shmtest
