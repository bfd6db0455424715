#pragma once

namespace shoal {

/// Descriptors that a worker is born with. Others are closed on exec.
inline constexpr int kWorkerControlFd = 3;
inline constexpr int kWorkerShmFd = 4;       ///< only with a rung that shares memory
inline constexpr int kWorkerListenerFd = 5;  ///< only with a rung that listens
inline constexpr int kWorkerLogFd = 6;       ///< only with a rung whose library writes a log

}  // namespace shoal
