#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/device/nccl_collective.h"
#include "tests/guard.h"

namespace shoal {

using Environment = std::map<std::string, std::string>;

/// What lets time pass for the deadlines of the ranks.
enum class TimePasses {
  kAlways,
  kOnceARankHasReported,  ///< or has ended
  kOnceRanksHang,         ///< as many as NcclGroup::hanging say so (FAKE_NCCL_HANG)
};

/// A group of processes over the emulated module and the fake NCCL.
struct NcclGroup {
  int world_size = 2;
  Environment environment;                ///< of every rank, before it opens anything
  std::map<int, Environment> of_rank;     ///< added to that, by rank
  std::map<int, std::string> library_of;  ///< by rank: a library to use instead of the fake NCCL
  int channels = 1;  ///< bounded through the environment, as the rungs do; 0: NCCL's choice
  bool reproducible = true;
  int64_t timeout_ms = kGuardMs;
  Waiting waits = nullptr;
  /// Size of a /dev/shm that only the group sees; 0: a large one, or the machine's.
  int64_t shm_bytes = 0;
  bool shm_read_only = false;  ///< needs shm_bytes
  int ranks_per_gpu = 1;
  TimePasses time_passes = TimePasses::kAlways;
  int hanging = 1;
  /// Called in a rank that has not opened, once it has reported why.
  std::function<void()> after_failure = [] {};
};

/// What the body of a rank gets once the rank is open.
struct NcclRank {
  Communicator& communicator;  ///< staged, over the NCCL collective
  std::function<void()> meet;  ///< a barrier of all open ranks that uses no transport
};
using NcclBody = std::function<std::string(NcclRank&)>;

struct NcclEnd {
  int signal = 0;
  Code code = Code::kOk;      ///< of the status that opening returned
  Fault fault = Fault::kOwn;  ///< the fault of that status
  std::string report;         ///< why it did not open, or what the body returned
};

struct NcclEnds {
  std::string skipped;  ///< why the group cannot be made here: no private mounts
  std::vector<NcclEnd> ranks;
  int64_t left_files =
      /// With shm_bytes: names that were in the group's /dev/shm when all ranks had ended.
      0;
};

/// Runs the body in every rank. It forks, so no other thread may be alive. A rank that failed stays
/// until every other one has reported too, or has ended.
NcclEnds run_nccl_ranks(const NcclGroup& group, const NcclBody& body);

/// How many times the fake NCCL of any rank of this group has told this (FAKE_NCCL_TELL). To be
/// called in a rank.
int times_told(const std::string& what);

/// The reports, one per line with the rank. Empty if all ranks opened and every report is empty.
std::string all_reports(const NcclEnds& ends);

/// Bytes in use in the file system of /dev/shm.
int64_t dev_shm_used();

}  // namespace shoal
