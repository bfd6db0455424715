#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "server/shmtest/condition.h"
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// Mounts what the condition wants at /dev/shm, in a mount namespace of our own. Any error means
/// that this condition cannot be had here. disk_folder becomes the directory, if any, that
/// remove_disk_folder() must take away in the end.
Status mount_dev_shm(const Condition& condition, std::string& disk_folder);

void remove_disk_folder(const std::string& disk_folder);

/// Looks at /dev/shm from within the sandbox, and fills it.
class DevShmWatch {
 public:
  /// What is there now counts neither as use nor as left behind.
  explicit DevShmWatch(const Condition& condition);

  /// Takes every block that is free now, in a file without a name. Again: what has become free
  /// since.
  Status fill();
  /// Samples the use.
  void sample();
  uint64_t peak_bytes() const { return peak_bytes_; }
  /// Names that were not there at the start, with what is allocated to them.
  std::vector<LeftFile> left() const;

 private:
  uint64_t used_bytes() const;

  Fd folder_;  // none where /dev/shm is missing
  Fd filler_;
  bool counts_files_ = false;  // not a file system of its own: its use is its files'
  std::set<std::string> names_before_;
  uint64_t bytes_before_ = 0;
  uint64_t peak_bytes_ = 0;
};

}  // namespace shoal::shmtest
