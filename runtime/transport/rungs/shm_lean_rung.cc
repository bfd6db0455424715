#include "runtime/transport/rungs/dev_shm_rung.h"

namespace shoal {
namespace {

/// Like shm with the smallest slots. Large messages take more steps, but no pool is smaller.
struct ShmLeanRung : DevShmRung<ShmLeanRung, kMinShmSlotBytes> {
  static constexpr char kName[] = "shm-lean";
};

}  // namespace

const Rung kShmLeanRung = rung_of<ShmLeanRung>(DeviceKind::kCpu, {1.1, 2.2});

}  // namespace shoal
