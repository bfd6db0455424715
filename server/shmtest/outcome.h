#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// How a condition ended.
enum class End {
  kBroken,      ///< the runner's own processes vanished: no verdict
  kForbidden,   ///< the kernel gives no namespaces at all: no condition can run
  kSkipped,     ///< this condition cannot be had here; detail says why
  kNotStarted,  ///< the command could not be executed in it; detail says why
  kExited,
  kSignalled,
  kHung,  ///< it was still running at the timeout
};

struct LeftFile {
  std::string name;    ///< below /dev/shm
  uint64_t bytes = 0;  ///< allocated, not apparent
};

/// What was seen of one command in one condition.
struct Outcome {
  std::string condition;
  End end = End::kBroken;
  int exit_code = 0;
  int signal = 0;
  double seconds = 0;
  uint64_t peak_bytes = 0;     ///< most that stood in /dev/shm beyond what was there before
  uint64_t oom_kills = 0;      ///< in the condition's memory cgroup
  std::vector<LeftFile> left;  ///< in /dev/shm once the command had ended
  std::vector<std::string>
      orphans;  ///< "PID name" of processes that outlived it (at a hang: that were running)
  bool orphan_sigbus = false;  ///< a process whose parent had ended before it died of SIGBUS
  std::string detail;          ///< of skipped, not started, forbidden
  std::string output_tail;     ///< last bytes of stdout and stderr together

  bool skipped() const { return end == End::kSkipped; }
  bool passed() const;
  /// Was it SIGBUS: its own, its exit code 128 + 7, an orphan's, or one that the output names?
  bool sigbus() const;
  /// One line: what failed, or what was skipped and why. Empty when all is well.
  std::string reason() const;
};

/// Writes all of it; where nobody reads there is nobody to tell.
void write_fully(int fd, std::string_view text);

/// Writes one record, KEY space VALUE NUL: how the processes of a sandbox tell the runner what they
/// see.
void send_record(int fd, std::string_view key, std::string_view value);

/// Reads records into an outcome. What is no record of ours is ignored: the sender may have been
/// killed half-way.
void apply_records(std::string_view text, Outcome& outcome);

/// The root cause alone, "what: Permission denied": what a record carries of an error.
std::string root_reason(const Status& status);

/// "SIGBUS", or "signal 40" for one without a name.
std::string signal_name(int signal);

/// "0", "512 B", "12.3 KiB", "64.0 MiB", "1.5 GiB".
std::string human_bytes(uint64_t bytes);

}  // namespace shoal::shmtest
