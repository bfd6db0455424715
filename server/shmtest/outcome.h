#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// How a condition ended.
enum class End {
  kBroken,      ///< the runner's own processes vanished, so there is no verdict
  kForbidden,   ///< the kernel allows no namespaces at all, so no condition can run
  kSkipped,     ///< this condition is not available here; detail says why
  kNotStarted,  ///< the command could not be executed; detail says why
  kExited,
  kSignalled,
  kHung,  ///< it was still running at the timeout
};

struct LeftFile {
  std::string name;    ///< path below /dev/shm
  uint64_t bytes = 0;  ///< allocated size, not apparent size
};

/// Which exit codes of the command are right in a condition that takes something away from it.
enum class Accept {
  kSuccess,  ///< 0 alone
  kError,  ///< any, because a program may refuse to start; a signal, a hang and a leak stay wrong.
           ///< The control then belongs to the matrix.
};

/// Whether the kernel told how every process ended (trace.h).
enum class Trace {
  kOff,       ///< it was not asked, or refused
  kEnded,     ///< it told until a process traced others itself
  kComplete,  ///< it told of all
};

/// The kinds of namespaces that a condition may need, in the order in which they are made.
enum class NamespaceKind { kUser, kMount, kProcess, kNetwork };

/// What one run of the command in one condition showed.
struct Outcome {
  std::string condition;
  End end = End::kBroken;
  int exit_code = 0;
  int signal = 0;
  double seconds = 0;
  /// The most that was seen in /dev/shm beyond what was there before. nullopt: nobody looked while
  /// the command ran, and nothing of it was there at its end.
  std::optional<uint64_t> peak_bytes;
  uint64_t oom_kills = 0;            ///< in the condition's memory cgroup
  std::vector<LeftFile> left;        ///< files in /dev/shm after the command had ended
  std::vector<std::string> orphans;  ///< "PID name" of processes that outlived the command; after a
                                     ///< hang, of those still running
  Trace trace = Trace::kOff;
  std::string trace_note;      ///< why the trace is not complete; empty if it was not wanted
  bool sigbus_seen = false;    ///< the kernel told of a process, traced or an orphan, that a SIGBUS
                               ///< killed
  std::string sigbus_process;  ///< "PID name" of the last such process; empty if not known
  std::string detail;          ///< for skipped, not started and forbidden; may be empty
  /// Forbidden, because there may be no more namespaces of this kind. nullopt: for another reason.
  std::optional<NamespaceKind> reached;
  bool in_place = false;     ///< it ran without namespaces, so that its pids are those of shmtest
  bool left_behind = false;  ///< a process hangs in the kernel, so that not even SIGKILL ended it
  std::string never_came;    ///< why the condition never came about; empty if it did
  Accept accept = Accept::kSuccess;
  std::string output_tail;  ///< the last bytes of stdout and stderr together

  bool control() const { return condition == "host"; }
  /// True if this shows nothing: the condition is not available here, or never came about while
  /// the command was well.
  bool skipped() const;
  bool passed() const;
  bool failed() const { return !skipped() && !passed(); }
  /// Whether a SIGBUS killed a process. With a complete trace the kernel's word decides. Otherwise
  /// it is true if there is a sign of it, and unknown if not: the command died of it, exited with
  /// 128 + 7, left an orphan that died of it, or names it in its output.
  std::optional<bool> sigbus() const;
  /// One line that says what failed, or what was skipped and why. Empty if all is well. What was
  /// running at a hang is not in it.
  std::string reason() const;
};

/// "PID name" as people read it: "name (pid PID)".
std::string process_text(std::string_view process);

/// Writes the whole text. Errors are ignored, because if nobody reads there is nobody to report
/// them to.
void write_fully(int fd, std::string_view text);

/// Writes one record, KEY space VALUE NUL. The processes of a sandbox report to the runner in this
/// form.
void send_record(int fd, std::string_view key, std::string_view value);

/// Reads records into an outcome. Anything that is not a record of ours is ignored, because the
/// sender may have been killed half-way.
void apply_records(std::string_view text, Outcome& outcome);

/// Whether pid 1 has sent its last record, so that only the end of its processes is awaited.
bool pid1_has_reported(std::string_view records);

/// The root cause alone, such as "what: Permission denied". This is the part of an error that a
/// record carries.
std::string root_reason(const Status& status);

/// "SIGBUS", or for example "signal 40" for a signal without a name.
std::string signal_name(int signal);

/// For example "0", "512 B", "12.3 KiB", "64.0 MiB", "1.5 GiB".
std::string human_bytes(uint64_t bytes);

}  // namespace shoal::shmtest
