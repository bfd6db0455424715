#pragma once
#include "server/cli/flags.h"

namespace shoal {

/// Runs `shoal doctor --nccl-version`, which prints what each NCCL rung would need here, by
/// consumer, and whether /dev/shm has room for it. It starts no rank and loads no library. Returns
/// the exit code: 0 if nccl-shm fits, otherwise 1, as for any answer that is no error.
int run_nccl_plan(const DoctorFlags& flags);

}  // namespace shoal
