#include "runtime/transport/rungs/dev_shm_rung.h"

namespace shoal {
namespace {

/// A pool of slots in an unnamed file in /dev/shm.
struct ShmRung : DevShmRung<ShmRung, kShmSlotBytes> {
  static constexpr char kName[] = "shm";
};

}  // namespace

const Rung kShmRung = rung_of<ShmRung>(DeviceKind::kCpu, {1.0, 1.0});

}  // namespace shoal
