#pragma once
#include <cstdint>
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

/// What one run of the command in one condition showed.
struct Outcome {
  std::string condition;
  End end = End::kBroken;
  int exit_code = 0;
  int signal = 0;
  double seconds = 0;
  uint64_t peak_bytes = 0;           ///< the most that was in /dev/shm beyond what was there before
  uint64_t oom_kills = 0;            ///< in the condition's memory cgroup
  std::vector<LeftFile> left;        ///< files in /dev/shm after the command had ended
  std::vector<std::string> orphans;  ///< "PID name" of processes that outlived the command; after a
                                     ///< hang, of those still running
  bool orphan_sigbus = false;        ///< a process died of SIGBUS after its parent had ended
  std::string detail;                ///< for skipped, not started and forbidden
  std::string output_tail;           ///< the last bytes of stdout and stderr together

  bool skipped() const { return end == End::kSkipped; }
  bool passed() const;
  /// True if a SIGBUS happened: the command died of it, exited with 128 + 7, left an orphan that
  /// died of it, or names it in its output.
  bool sigbus() const;
  /// One line that says what failed, or what was skipped and why. Empty if all is well.
  std::string reason() const;
};

/// Writes the whole text. Errors are ignored, because if nobody reads there is nobody to report
/// them to.
void write_fully(int fd, std::string_view text);

/// Writes one record, KEY space VALUE NUL. The processes of a sandbox report to the runner in this
/// form.
void send_record(int fd, std::string_view key, std::string_view value);

/// Reads records into an outcome. Anything that is not a record of ours is ignored, because the
/// sender may have been killed half-way.
void apply_records(std::string_view text, Outcome& outcome);

/// The root cause alone, such as "what: Permission denied". This is the part of an error that a
/// record carries.
std::string root_reason(const Status& status);

/// "SIGBUS", or for example "signal 40" for a signal without a name.
std::string signal_name(int signal);

/// For example "0", "512 B", "12.3 KiB", "64.0 MiB", "1.5 GiB".
std::string human_bytes(uint64_t bytes);

}  // namespace shoal::shmtest
