#pragma once
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

// What the facts about devices forbid: pure functions for the rungs' probes. Each answer ends in
// one line of advice.

/// Devices that a group uses: ranks / ranks_per_gpu, rounded up.
int group_devices(const GpuFacts& facts);

/// The oldest driver for a CUDA runtime, "580.65.06" for 13000; empty: not known.
std::string_view oldest_driver(int cuda_runtime);

/// Can every rank have its device? NOT_FOUND: no module. FAILED_PRECONDITION: a module that does
/// not load or is of another build (the loader's words); no driver, one too old, no device (CUDA's
/// words); a device that the module has no code for; more ranks than devices. DEADLINE_EXCEEDED:
/// the devices did not answer.
Status check_devices(const GpuFacts& facts);

/// check_devices, then: does NCCL load, and is it new enough? FAILED_PRECONDITION with the loader's
/// words or both versions.
Status check_nccl(const GpuFacts& facts);

/// check_devices, then: does every device of the group reach every other one's memory, with the
/// right bytes? One verdict for all users of peer access, found before anything could hang.
/// FAILED_PRECONDITION: the driver does not allow it, or it failed; DATA_LOSS: bytes came out
/// wrong; DEADLINE_EXCEEDED: a pair hung. A group on one device passes.
Status check_peers(const GpuFacts& facts);

/// Which code of `architectures` ("75-virtual 80-real 90-real") a device of this compute capability
/// ("9.0") would run: machine code of the same major and no later minor version, or virtual code of
/// no later version. Empty: any would do; else why not.
std::string why_no_code(std::string_view architectures, std::string_view compute_capability);

}  // namespace shoal
