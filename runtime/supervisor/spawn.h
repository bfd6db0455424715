#pragma once
#include <string>
#include <sys/types.h>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// A worker process and the descriptor that reports its end.
struct WorkerProcess {
  pid_t pid = -1;
  Fd pidfd;  ///< readable once the process has exited; not valid if the kernel gives none
};

/// Descriptors to hand to a worker, -1 for none. The caller keeps its own.
struct WorkerDescriptors {
  int control = -1;
  int shm = -1;
  int listener = -1;
  int log = -1;
  std::vector<int> work;  ///< each keeps its number, which is at least kFirstWorkFd
};

/// Starts `shoal worker` for a rank, from this very program file, by posix_spawn (nothing forks
/// once gRPC runs). Its stdout is our stderr, because stdout belongs to the front. The calling
/// thread must live as long as the worker should, because the kernel kills the worker when that
/// thread ends. environment: NAME=VALUE, each replaces what this process has under that name;
/// everything else is inherited. RESOURCE_EXHAUSTED with errno and the limit that is reached;
/// UNAVAILABLE with errno: this program's file cannot be run.
Result<WorkerProcess> spawn_worker(int rank, const WorkerDescriptors& descriptors,
                                   const std::vector<std::string>& environment = {});

}  // namespace shoal
