#include "runtime/transport/rungs/dev_shm_rung.h"

namespace shoal {
namespace {

constexpr char kName[] = "shm";
using ShmRung = DevShmRung<kName, kShmSlotBytes>;

}  // namespace

/// A pool of slots in an unnamed file in /dev/shm.
const Rung kShmRung{kName, ShmRung::need, ShmRung::probe, ShmRung::prepare, ShmRung::open};

}  // namespace shoal
