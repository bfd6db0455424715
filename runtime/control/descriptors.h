#pragma once

namespace shoal {

/// The descriptors that a worker inherits, apart from standard input, output and error. All others
/// are closed on exec.
inline constexpr int kWorkerControlFd = 3;
inline constexpr int kWorkerShmFd = 4;       ///< only with a rung that shares memory
inline constexpr int kWorkerListenerFd = 5;  ///< only with a rung that listens
inline constexpr int kWorkerLogFd = 6;       ///< only with a rung whose library writes a log

/// The descriptors of a rank's work keep the numbers that they have in the front, which start here.
inline constexpr int kFirstWorkFd = 16;

}  // namespace shoal
