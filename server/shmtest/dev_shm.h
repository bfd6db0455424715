#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// Mounts what the condition wants at /dev/shm. Must be called in a mount namespace of our own. An
/// error means that this condition is not available here. If the mount needs a directory on disk,
/// disk_folder is set to it, and remove_disk_folder() must remove it in the end.
Status mount_dev_shm(const Condition& condition, std::string& disk_folder);

void remove_disk_folder(const std::string& disk_folder);

/// Observes /dev/shm from within the sandbox, and fills it.
class DevShmWatch {
 public:
  /// What is in /dev/shm now counts neither as used nor as left behind.
  explicit DevShmWatch(const Condition& condition);

  /// Takes every block that is free now, in a file without a name. A later call takes what has
  /// become free since.
  Status fill();
  /// Records how much is in use now. Nothing in use says something only if the command is at work.
  void sample(bool at_work);
  /// The most that was in use; nullopt: no look has said anything.
  std::optional<uint64_t> peak_bytes() const { return peak_bytes_; }
  /// Names that were not there at the start, with the bytes allocated to them.
  std::vector<LeftFile> left() const;

 private:
  uint64_t used_bytes() const;

  Fd folder_;  // invalid if /dev/shm is missing
  Fd filler_;
  bool counts_files_ = false;  // /dev/shm is not a file system of its own, so add up its files
  std::set<std::string> names_before_;
  uint64_t bytes_before_ = 0;
  std::optional<uint64_t> peak_bytes_;
};

}  // namespace shoal::shmtest
