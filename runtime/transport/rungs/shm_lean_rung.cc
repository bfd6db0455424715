#include "runtime/transport/rungs/dev_shm_rung.h"

namespace shoal {
namespace {

constexpr char kName[] = "shm-lean";
using ShmLeanRung = DevShmRung<kName, kMinShmSlotBytes>;

}  // namespace

/// As shm with the smallest slots: large messages take more steps, and the pool is as small as one
/// can be.
const Rung kShmLeanRung{kName, ShmLeanRung::need, ShmLeanRung::probe, ShmLeanRung::prepare,
                        ShmLeanRung::open};

}  // namespace shoal
