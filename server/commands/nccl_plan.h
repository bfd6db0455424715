#pragma once
#include "server/cli/flags.h"

namespace shoal {

/// Runs `shoal doctor --nccl-version`, which prints what each NCCL rung would need here, by
/// consumer, and whether /dev/shm has room for it. It starts no rank and loads no library. Returns
/// the exit code: 0 if nccl-shm fits, 1 if it does not.
int run_nccl_plan(const DoctorFlags& flags);

}  // namespace shoal
