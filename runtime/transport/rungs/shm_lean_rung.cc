#include "runtime/transport/rungs/dev_shm_rung.h"

namespace shoal {
namespace {

constexpr char kName[] = "shm-lean";
using ShmLeanRung = DevShmRung<kName, kMinShmSlotBytes>;

}  // namespace

/// Like shm with the smallest slots. Large messages take more steps, but no pool is smaller.
const Rung kShmLeanRung{kName, ShmLeanRung::need, ShmLeanRung::probe, ShmLeanRung::prepare,
                        ShmLeanRung::open};

}  // namespace shoal
