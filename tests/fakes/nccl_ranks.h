#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/device/nccl_collective.h"

namespace shoal {

using Environment = std::map<std::string, std::string>;

/// A wait that a test means to sit out, longer where the code is sanitized.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t patience_ms(int64_t milliseconds) {
  return 4 * milliseconds;
}
#else
constexpr int64_t patience_ms(int64_t milliseconds) {
  return milliseconds;
}
#endif

/// A group of processes over the fake CUDA module and the fake NCCL.
struct NcclGroup {
  int world_size = 2;
  Environment environment;                ///< of every rank, before it opens anything
  std::map<int, Environment> of_rank;     ///< over it
  std::map<int, std::string> library_of;  ///< instead of the fake NCCL
  int channels = 1;  ///< bounded as the rungs do it, by the environment; 0: NCCL's choice
  bool reproducible = true;
  int64_t timeout_ms = 50'000;
  Interrupted interrupted = nullptr;
  int64_t shm_bytes = 0;  ///< of a /dev/shm of the group's own; 0: a large one, or what is here
  bool shm_read_only = false;  ///< with shm_bytes
  int ranks_per_gpu = 1;
  int64_t linger_ms =
      0;  ///< a rank that has not opened lives on for so long, with all that it freed overwritten
};

/// What a rank has once it is open.
struct NcclRank {
  Communicator& communicator;  ///< staged, over the collective
  std::function<void()> meet;  ///< a barrier of all open ranks that uses no transport
};
using NcclBody = std::function<std::string(NcclRank&)>;

struct NcclEnd {
  int signal = 0;
  Code code = Code::kOk;  ///< of the open
  std::string report;     ///< why it did not open, or what the body returned
};

struct NcclEnds {
  std::string skipped;  ///< why the group cannot be had here: no private mounts
  std::vector<NcclEnd> ranks;
  int64_t left_files =
      0;  ///< with shm_bytes: names in the group's /dev/shm when all ranks had ended
};

/// Runs the body as every rank. Forks: no other thread may be alive. SIGALRM ends a rank after 90
/// s, sanitized 360.
NcclEnds run_nccl_ranks(const NcclGroup& group, const NcclBody& body);

/// The reports, one a line with the rank; empty when all opened and every report is empty.
std::string all_reports(const NcclEnds& ends);

/// Bytes in use in the file system of /dev/shm.
int64_t dev_shm_used();

}  // namespace shoal
