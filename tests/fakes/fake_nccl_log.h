// Part of a FAKE of libnccl (fake_nccl.cc): its log.
#pragma once
#include <cstdint>

namespace fake_nccl {

/// The subsystems of NCCL_DEBUG_SUBSYS. If the variable is not set, the first three are on.
enum class Subsystem : uint32_t {
  kInit = 1,
  kBootstrap = 2,
  kEnv = 4,
  kAlloc = 8,
  kShm = 16,
  kP2p = 32,
  kNet = 64,
  kAllocHost = 128
};

/// Sets the CUDA device that the log lines of the calling thread show.
void set_log_device(int device);

__attribute__((format(printf, 2, 3))) void info(Subsystem subsystem, const char* format, ...);
/// `where` is a file and line of the real library. The text is kept as the last error whatever the
/// value of NCCL_DEBUG is.
__attribute__((format(printf, 2, 3))) void warn(const char* where, const char* format, ...);
/// Logs the line with the version, once per process.
void say_version();

/// The text of the last warning of any thread. It belongs to the calling thread, and is valid until
/// that asks again or ends. The real library returns a buffer that all threads share.
const char* last_error();

}  // namespace fake_nccl
