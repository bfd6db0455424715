#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace shoal {

/// What Shoal does with a version of NCCL that has the bug.
enum class NcclBugSeverity {
  kRefuse,  ///< ranks do not use that version
  kWarn,    ///< they do, and a start says so if its ranks can meet the bug
};

/// What has to be so that a group of ranks can meet a bug.
enum class NcclBugCondition {
  kFiles,             ///< two ranks connect over files in /dev/shm
  kThreads,           ///< ranks are threads of one process
  kGraphs,            ///< collectives are part of CUDA graphs
  kCumemHost,         ///< host memory comes from cuMem, and not from files in /dev/shm
  kWindows,           ///< symmetric windows are registered
  kNvls,              ///< NVLink SHARP is on
  kGeforceBlackwell,  ///< GPUs of compute capability 12.x
  kBeforeBlackwell,   ///< GPUs of compute capability below 10.0
  kArmNetwork,        ///< the processor is an Arm, and ranks connect over a network
  kSharedGpu,         ///< several ranks share a GPU
  kHosts,             ///< ranks are on several hosts
};

/// A bug that some versions of NCCL have. Versions are NCCL_VERSION_CODEs, such as 22809.
struct NcclBug {
  /// The release that brought the code, or otherwise the oldest version that a source names; 0: no
  /// source says since when.
  int first_bad = 0;
  int first_good = 0;  ///< the version to move to; 0: none is known
  NcclBugSeverity severity = NcclBugSeverity::kWarn;
  NcclBugCondition condition = NcclBugCondition::kFiles;
  const char* what = "";    ///< what a user sees
  const char* avoid = "";   ///< NAME=VALUE that does without what has the bug; empty: none is known
  const char* source = "";  ///< where it is described, for people
  constexpr bool has(int version) const {
    return version >= first_bad && (first_good == 0 || version < first_good);
  }
};

/// What the ranks of a tensor-parallel group can meet, on one host or a few, of what has a source
/// that names versions. The release notes are those of github.com/NVIDIA/nccl/releases, read up to
/// 2.31.2 and, of 2.32.3, the first part only. Sorted by the version to move to, because that is
/// the order in which they go away.
///
/// The one that is refused was only seen between the threads of one process (llama.cpp), which
/// Shoal's ranks are not. But nobody has said that other ranks cannot meet it, and a library
/// without it has all fields of NcclConfig (nccl_api.h).
inline constexpr std::array<NcclBug, 17> kNcclBugs = {{
    {21207, 21901, NcclBugSeverity::kWarn, NcclBugCondition::kFiles,
     "a rank dies of SIGBUS, instead of an error, if /dev/shm is too small", "",
     "release notes 2.19.1; NVIDIA/nccl#983"},
    {21602, 22203, NcclBugSeverity::kWarn, NcclBugCondition::kGraphs,
     "after a number of graph launches all ranks wait for ever for room in NCCL's work queue", "",
     "NVIDIA/nccl#1251; sgl-project/sglang#7602"},
    {22501, 22602, NcclBugSeverity::kWarn, NcclBugCondition::kGeforceBlackwell,
     "collectives fail with \"ncclMaxSharedMem ... exceeds device/fn maxSharedMem\"", "",
     "release notes 2.26.2; NVIDIA/nccl#1637"},
    {22403, 22603, NcclBugSeverity::kWarn, NcclBugCondition::kCumemHost,
     "the first connection fails with a CUDA error in a container that forbids NUMA's system calls",
     "NCCL_CUMEM_HOST_ENABLE=0", "release notes 2.24.3 and 2.26.3"},
    {0, 22705, NcclBugSeverity::kRefuse, NcclBugCondition::kThreads,
     "an all-reduce reaches beyond its buffers: \"an illegal memory access was encountered\"", "",
     "ggml-org/llama.cpp#24489, where 2.22.3 fails and 2.27.5 does not"},
    {22705, 22707, NcclBugSeverity::kWarn, NcclBugCondition::kBeforeBlackwell,
     "init fails in some places, when it loads kernels for fp8 on Blackwell", "",
     "release notes 2.27.5 and 2.27.7"},
    {22703, 22807, NcclBugSeverity::kWarn, NcclBugCondition::kWindows,
     "results are wrong if a small message is no multiple of 8 bytes, or if operations are grouped",
     "NCCL_WIN_ENABLE=0", "release notes 2.28.7"},
    {22703, 22902, NcclBugSeverity::kWarn, NcclBugCondition::kNvls,
     "init hangs if only some of the ranks get memory for NVLink SHARP", "NCCL_NVLS_ENABLE=0",
     "NCCL User Guide, NCCL_NVLS_ENABLE"},
    {22809, 22903, NcclBugSeverity::kWarn, NcclBugCondition::kArmNetwork,
     "all ranks hang without a word, because slots of a proxy-ops pool get lost", "",
     "release notes 2.29.3; NVIDIA/nccl#2353"},
    {22907, 23007, NcclBugSeverity::kWarn, NcclBugCondition::kHosts,
     "collectives hang over InfiniBand", "NCCL_PXN_DISABLE=1",
     "docs.nvidia.com/cuda/cuest/troubleshooting, known issues"},
    {22803, 23007, NcclBugSeverity::kWarn, NcclBugCondition::kWindows,
     "results are wrong now and then, because a collective reads its input before the kernel that "
     "writes it is done (seen in CUDA graphs)",
     "NCCL_WIN_ENABLE=0", "release notes 2.30.7; sgl-project/sglang#37768"},
    {22902, 23102, NcclBugSeverity::kWarn, NcclBugCondition::kWindows,
     "data between hosts are corrupted if several windows are cut from one allocation", "",
     "release notes 2.31.2; NVIDIA/nccl#2198"},
    {22902, 23102, NcclBugSeverity::kWarn, NcclBugCondition::kWindows,
     "the first all-gather of two ranks by copy engines hangs (Blackwell with NVLink SHARP)",
     "NCCL_NVLS_ENABLE=0", "release notes 2.29.2 and 2.31.2; NVIDIA/nccl#2241"},
    {23007, 23102, NcclBugSeverity::kWarn, NcclBugCondition::kSharedGpu,
     "NVLink SHARP, which such ranks cannot use, stays on unless the last two share one",
     "NCCL_NVLS_ENABLE=0", "release notes 2.31.2; NVIDIA/nccl#2257"},
    {22403, 0, NcclBugSeverity::kWarn, NcclBugCondition::kCumemHost,
     "the first connection fails with CUDA error 217, \"peer access is not supported\", if GPUs do "
     "not reach each other and the driver is older than CUDA 13.0",
     "NCCL_CUMEM_HOST_ENABLE=0", "NCCL User Guide, NCCL_CUMEM_HOST_ENABLE; NVIDIA/nccl#1838"},
    {22603, 0, NcclBugSeverity::kWarn, NcclBugCondition::kCumemHost,
     "ranks that disagree on whether such memory works fail with \"Error while attaching to shared "
     "memory segment ... (size 0)\"",
     "NCCL_CUMEM_HOST_ENABLE=0", "NVIDIA/nccl#2190, and its open repair #2388"},
    {22902, 0, NcclBugSeverity::kWarn, NcclBugCondition::kNvls,
     "init fails with \"Failed to bind NVLink SHARP (NVLS) Multicast memory\", where 2.28 did "
     "without it, if the switches have no slot left (many communicators) or are not set up",
     "NCCL_NVLS_ENABLE=0", "NVIDIA/nccl#2077, which is open"},
}};

/// The oldest version that is accepted, as an NCCL_VERSION_CODE: the first one without a bug that
/// is refused.
inline constexpr int kNcclFloor = [] {
  int floor = 0;
  for (const NcclBug& bug : kNcclBugs)
    if (bug.severity == NcclBugSeverity::kRefuse) floor = std::max(floor, bug.first_good);
  return floor;
}();
static_assert(std::all_of(kNcclBugs.begin(), kNcclBugs.end(),
                          [](const NcclBug& bug) {
                            return bug.severity == NcclBugSeverity::kWarn ||
                                   (bug.first_bad == 0 && bug.first_good > 0);
                          }),
              "what is refused is everything before a version");

/// The bugs that this version has, in the order of the table.
std::vector<const NcclBug*> nccl_bugs_of(int version);

/// The first bug for which this version is refused; nullptr: it is not refused.
const NcclBug* refusing_nccl_bug(int version);

/// The oldest version from this one on that has none of the bugs for which a good version is known.
int nccl_version_to_move_to(int version);

/// "refuse", "warn": as in JSON.
const char* severity_name(NcclBugSeverity severity);

/// A condition in words.
struct NcclBugConditionText {
  const char* name;     ///< "threads": as in JSON
  const char* only_if;  ///< completes "only if"
  const char* engines;  ///< which engines can meet it
};
const NcclBugConditionText& text_of(NcclBugCondition condition);

/// "from 2.28.9 to before 2.29.3", "before 2.27.5", "from 2.26.3 on".
std::string nccl_bug_versions(const NcclBug& bug);

/// Turns 22809 into "2.28.9".
std::string nccl_version_text(int version);

}  // namespace shoal
