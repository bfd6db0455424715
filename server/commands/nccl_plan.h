#pragma once
#include "server/cli/flags.h"

namespace shoal {

/// `shoal doctor --nccl-version`: what each of NCCL's rungs would need here, per consumer, and
/// whether /dev/shm has it. Starts no rank and loads no library. The exit code: 0 nccl-shm fits, 1
/// it does not.
int run_nccl_plan(const DoctorFlags& flags);

}  // namespace shoal
