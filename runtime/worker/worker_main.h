#pragma once

namespace shoal {

/// The whole life of a rank, in a process of its own: `shoal worker`. Reads WorkerInit from the
/// control channel, loads, connects, then runs one StepPlan after the other until the front says so
/// or is gone. Ignores SIGTERM and SIGINT (a signal to the process group is the front's to answer)
/// and dies with the thread that spawned it. Returns the exit code: 0 after Shutdown or when the
/// front is gone, 1 after a failure it has reported.
int worker_main(int control_fd);

}  // namespace shoal
