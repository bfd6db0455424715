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

// These functions are about files in a directory for shared memory that a killed run may have left:
// regular files directly in it, named like Shoal's (.shoal-PID-N, .shoal-probe-PID-N) or like
// NCCL's (nccl-XXXXXX, mkstemp's six letters or digits). To find out whether a file is still in
// use, Shoal asks the kernel for a write lease (fcntl F_SETLEASE), which is refused while any
// process of any pid namespace has the file open or mapped. Pids and ages are not looked at,
// because they mean nothing across containers that share a /dev/shm.

/// The write lease on a file that nobody has open. While it is held, an open by anyone else waits
/// (or fails with EWOULDBLOCK), so that nobody can begin to use the file. Hold it only for
/// microseconds.
class LeftFileLease {
 public:
  /// Finds out the state of the file. The lease is held if state() is kStale. directory: an open
  /// descriptor that outlives this object. maker_is_gone: the process that made the file has ended,
  /// so that a fresh empty file is not one that is just being created.
  static LeftFileLease ask(int directory, const std::string& name, bool maker_is_gone = false);

  LeftFileState state() const { return state_; }
  int64_t bytes() const { return bytes_; }  ///< allocated
  uint32_t uid() const { return uid_; }
  bool is_candidate() const { return candidate_; }  ///< false: it is gone, or is not a regular file

  /// Unlinks the name if it still names the leased file. False: it names another file by now, the
  /// lease is not held, or the name cannot be unlinked.
  bool unlink_name();

 private:
  int directory_ = -1;
  std::string name_;
  Fd file_;
  LeftFileState state_ = LeftFileState::kUnknown;
  bool candidate_ = false;
  int64_t bytes_ = 0;
  uint32_t uid_ = 0;
};

/// All such files, sorted by path. Empty if the directory cannot be read. Opens each file of this
/// user for a moment. A name like NCCL's alone does not show that a file is NCCL's, because people
/// choose such names too ("nccl-backup", ".shoal-2026-11"). One with another mode than 0600, or
/// that is neither empty nor of a size that is_nccl_size knows for NCCL's names, is kUnknown and is
/// not opened.
std::vector<LeftFile> find_left_files(const std::string& directory, const NcclSize& is_nccl_size);

struct SweepResult {
  std::vector<LeftFile> removed;
  int64_t bytes = 0;           ///< given back
  std::vector<LeftFile> kept;  ///< each with the state that kept it
};

/// Removes the files that are stale now, as find_left_files sees them. The lease of each is asked
/// for again, and the file is unlinked while the lease is held. NOT_FOUND or PERMISSION_DENIED: the
/// directory cannot be read.
Result<SweepResult> remove_stale(const std::string& directory, const NcclSize& is_nccl_size);

/// Identifies a file whatever its name is: it stays the same when the file is renamed, and a new
/// file of the same name has another one. A group of ranks records the files that its ranks hold
/// open (segments_held_by), once they have started and again before they are killed.
struct SegmentId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const SegmentId&) const = default;
};

/// Removes the files of `ids` that are stale, and nothing else. Whoever held them has ended. The
/// ids only narrow the choice down: an inode number may have been given to a newer file, so that
/// the lease decides here too.
Result<SweepResult> remove_recorded(const std::string& directory,
                                    const std::vector<SegmentId>& ids);

/// Removes the files that the text names as NCCL's ("/dev/shm/nccl-XXXXXX"), if they are stale. The
/// text is a log of processes that have ended. When NCCL finds no space it leaves an empty file
/// behind, which no process holds open any more.
SweepResult remove_named_in(const std::string& directory, std::string_view text);

}  // namespace shoal
