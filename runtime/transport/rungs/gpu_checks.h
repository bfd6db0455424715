#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/gpu_name.h"
#include "runtime/base/status.h"
#include "runtime/transport/facts/host_facts.h"

namespace shoal {

// Pure functions for the rungs' probes that find out what the facts about devices forbid. Each
// refusal ends in one line of advice.

/// The number of devices that a group uses: ranks / ranks_per_gpu, rounded up, or all devices if no
/// number of ranks was asked for.
int group_devices(const GpuFacts& facts);

/// Those devices as messages name them, in the order of their ranks. Empty: nobody has asked, or
/// there are too few.
std::vector<GpuName> group_gpus(const GpuFacts& facts);

/// The oldest driver for a CUDA runtime, "580.65.06" for 13000; empty: not known.
std::string_view oldest_driver(int cuda_runtime);

/// Can every rank have its device? NOT_FOUND: no module. FAILED_PRECONDITION: a module that does
/// not load or is of another build (with the loader's message); no driver, one that is too old, or
/// no device (with CUDA's message); a device that the module has no code for; more ranks than the
/// devices can take. DEADLINE_EXCEEDED: the devices did not answer.
Status check_devices(const GpuFacts& facts);

/// Should all devices of the group give the same bits, by their capability? FAILED_PRECONDITION,
/// naming two that do not. Ranks then compare what their devices really give
/// (runtime/worker/device_arithmetic.h).
Status check_same_arithmetic(const GpuFacts& facts);

/// check_devices, then: does NCCL load, and is it new enough? FAILED_PRECONDITION with the loader's
/// message or both versions.
Status check_nccl(const GpuFacts& facts);

/// check_devices, then: does every device of the group reach every other one's memory, with the
/// right bytes? All rungs with peer access share this answer, which was found before a rank could
/// hang. FAILED_PRECONDITION: the driver does not allow it, or it failed; DATA_LOSS: bytes came out
/// wrong; DEADLINE_EXCEEDED: a pair hung. A group on one device passes.
Status check_peers(const GpuFacts& facts);

/// Why a device of this compute capability ("9.0") can run none of the code in `architectures`
/// ("80-virtual 80-real 90-real 100-real 120-real"); empty: it can run some. A device
/// runs machine code if it was built for the same major version and for the same or an earlier
/// minor version. It runs virtual code that was built for its own version or an earlier one.
std::string why_no_code(std::string_view architectures, std::string_view compute_capability);

/// `architectures` for people: "compute capability 8.0, 9.0, 10.0, 12.0, and others from 8.0 on".
/// As it is if it has a word of another form.
std::string shown_architectures(std::string_view architectures);

/// The devices of the group that run only virtual code of the module, which the driver compiles
/// when a process loads it: "GPU 0 (GPU-8f0c..., NVIDIA H100 80GB HBM3) of compute capability 9.0".
/// That takes minutes the first time. Empty: there is none.
std::string devices_to_compile_for(const GpuFacts& facts);

}  // namespace shoal
