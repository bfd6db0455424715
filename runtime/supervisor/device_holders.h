#pragma once
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "runtime/base/failure.h"
#include "runtime/base/gpu_name.h"
#include "runtime/control/messages.h"

namespace shoal {

/// The processes of lost ranks, and the devices that they had. Ranks that are started again get the
/// same devices, and a process gives its device back only when it ends. If the ranks need no
/// device, this class does nothing. Not thread-safe.
class DeviceHolders {
 public:
  /// start: what every rank of the group is sent.
  explicit DeviceHolders(const RankStart& start)
      : on_devices_(start.device == DeviceKind::kCuda),
        ranks_per_gpu_(start.ranks_per_gpu),
        gpus_(start.gpus) {}

  /// Records that a group that has run is lost. processes: those of the group, by rank.
  void lost(std::vector<pid_t> processes) { lost_ = std::move(processes); }
  /// Records that the process of this rank hangs in the kernel and could not be ended. It is meant
  /// for StartControl::on_left_behind.
  void left_behind(int rank, pid_t process);

  bool any() const { return !left_behind_.empty(); }

  /// Reaps those of the processes left behind that have ended by now. Nullopt: all of them have
  /// ended. Otherwise a Failure (ABORTED, Fault::kShortage) names one that is still there, with its
  /// state and its device.
  std::optional<Failure> held();

  /// Says of a lost rank, if its process has ended, which one it was and which device it had:
  /// "rank 0 (pid 4711), which had GPU 0 (GPU-..., NVIDIA H100), has ended". Otherwise empty.
  std::string ended_text(int rank) const;

 private:
  std::string gpu_of(int rank) const;

  const bool on_devices_;
  const int ranks_per_gpu_;
  const std::vector<GpuName> gpus_;
  std::vector<pid_t> lost_;
  std::vector<std::pair<int, pid_t>> left_behind_;  // rank and process
};

}  // namespace shoal
