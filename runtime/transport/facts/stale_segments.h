#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

/// Files in a directory for shared memory that a killed run may have left: regular files directly
/// in it, named as ours
/// (.shoal-PID-N, .shoal-probe-PID-N) or as NCCL's (nccl-XXXXXX, mkstemp's six letters or digits).
/// Whether somebody still has one is asked of the kernel: a write lease (fcntl F_SETLEASE) is
/// refused while any process of any pid namespace has the file open or mapped. Pids and ages say
/// nothing across containers that share a /dev/shm, and are not looked at.

/// "stale", "in use", "other user" or "unknown".
namespace left_file {
inline constexpr const char* kStale = "stale";
inline constexpr const char* kInUse = "in use";
inline constexpr const char* kOtherUser = "other user";  ///< never touched, not even by root
inline constexpr const char* kUnknown =
    "unknown";  ///< has other names, is empty and seconds old, or gives no lease
}  // namespace left_file

/// The write lease on a file that nobody has open. While it is held, an open by anyone else waits
/// (or fails with EWOULDBLOCK), so that what was true of the file stays true. Hold it for
/// microseconds.
class LeftFileLease {
 public:
  /// What the file is; the lease is held where state() is "stale". directory: an open descriptor
  /// that outlives this. maker_is_gone: the process that made the name has ended, so that a fresh
  /// and empty file is nobody's beginning.
  static LeftFileLease ask(int directory, const std::string& name, bool maker_is_gone = false);

  const std::string& state() const { return state_; }
  int64_t bytes() const { return bytes_; }  ///< allocated
  uint32_t uid() const { return uid_; }
  bool is_candidate() const { return candidate_; }  ///< false: gone, or no regular file

  /// Unlinks the name if it still is the leased file. False: it is another file's by now, or the
  /// lease is not held.
  bool unlink_name();

 private:
  int directory_ = -1;
  std::string name_;
  Fd file_;
  std::string state_ = left_file::kUnknown;
  bool candidate_ = false;
  int64_t bytes_ = 0;
  uint32_t uid_ = 0;
};

/// All such files, sorted by path. Empty where the directory cannot be read. Opens each file of
/// this user for a moment.
std::vector<LeftFile> find_left_files(const std::string& directory);

struct SweepResult {
  int removed = 0;
  int64_t bytes = 0;           ///< given back
  std::vector<LeftFile> kept;  ///< with the state that kept them
};

/// Removes those that are stale at that moment: each is asked again, and unlinked while its lease
/// is held. NOT_FOUND or PERMISSION_DENIED: the directory cannot be read.
Result<SweepResult> remove_stale(const std::string& directory);

/// Which file, whatever its name: survives a rename, and a new file of the old name is another. A
/// group of ranks keeps those that its ranks hold open (segments_held_by, once they have started
/// and again before they are killed).
struct SegmentId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const SegmentId&) const = default;
};

/// Removes those of ids that are stale; all else stays. The ids only narrow the choice down: an
/// inode number may have been given to a newer file, so that the lease decides here too.
Result<SweepResult> remove_recorded(const std::string& directory,
                                    const std::vector<SegmentId>& ids);

/// Removes the files that the text, a log of processes that have ended, names as NCCL's
/// ("/dev/shm/nccl-XXXXXX") where they are stale: NCCL leaves an empty one behind when it finds no
/// space, which nobody holds any more.
SweepResult remove_named_in(const std::string& directory, std::string_view text);

}  // namespace shoal
