#include "runtime/comm/device/nccl_known_bugs.h"

#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr const char* kEveryEngine = "every engine";

/// In the order of the enum.
constexpr std::array<NcclBugConditionText, 11> kConditions = {{
    {"files", "GPUs do not reach each other's memory, so that ranks connect over files in /dev/shm",
     kEveryEngine},
    {"threads", "ranks are threads of one process, and their buffers come from cuMemCreate",
     "engines with one process for all ranks, as llama.cpp and LMDeploy's TurboMind"},
    {"graphs", "collectives are part of CUDA graphs",
     "engines that capture decode steps, as vLLM, SGLang and TGI"},
    {"cumem-host",
     "ranks connect over host memory from cuMem (NCCL_CUMEM_HOST_ENABLE, on by default)",
     "engines with a process per rank that leave this variable alone"},
    {"windows", "symmetric windows are registered (ncclCommWindowRegister)",
     "engines that register windows, as vLLM with VLLM_USE_NCCL_SYMM_MEM=1, SGLang with "
     "--enable-symm-mem, and TensorRT-LLM"},
    {"nvls", "NVLink SHARP is on (NCCL_NVLS_ENABLE, on by default from Hopper on with NVSwitch)",
     kEveryEngine},
    {"geforce-blackwell", "GPUs are of compute capability 12.x (RTX 50, RTX PRO Blackwell)",
     kEveryEngine},
    {"before-blackwell", "GPUs are older than Blackwell", kEveryEngine},
    {"arm-network", "the processor is an Arm, and ranks connect over a network or sockets",
     kEveryEngine},
    {"shared-gpu", "several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)",
     "engines that put several ranks on a GPU"},
    {"hosts", "ranks are on several hosts", "engines with ranks on several hosts"},
}};
static_assert(kConditions.size() == static_cast<size_t>(NcclBugCondition::kHosts) + 1);

}  // namespace

std::vector<const NcclBug*> nccl_bugs_of(int version) {
  std::vector<const NcclBug*> bugs;
  for (const NcclBug& bug : kNcclBugs)
    if (bug.has(version)) bugs.push_back(&bug);
  return bugs;
}

const NcclBug* refusing_nccl_bug(int version) {
  for (const NcclBug& bug : kNcclBugs)
    if (bug.severity == NcclBugSeverity::kRefuse && bug.has(version)) return &bug;
  return nullptr;
}

int nccl_version_to_move_to(int version) {
  // A version that is good for one bug may have the next.
  for (int before = -1; version != before;) {
    before = version;
    for (const NcclBug* bug : nccl_bugs_of(version)) version = std::max(version, bug->first_good);
  }
  return version;
}

const char* severity_name(NcclBugSeverity severity) {
  return severity == NcclBugSeverity::kRefuse ? "refuse" : "warn";
}

const NcclBugConditionText& text_of(NcclBugCondition condition) {
  return kConditions.at(static_cast<size_t>(condition));
}

std::string nccl_bug_versions(const NcclBug& bug) {
  if (bug.first_bad == 0) return cat("before ", nccl_version_text(bug.first_good));
  if (bug.first_good == 0) return cat("from ", nccl_version_text(bug.first_bad), " on");
  return cat("from ", nccl_version_text(bug.first_bad), " to before ",
             nccl_version_text(bug.first_good));
}

std::string nccl_version_text(int version) {
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace shoal
