#pragma once
#include "runtime/base/status.h"

namespace shoal::shmtest {

/// Covers /dev, in a mount namespace of our own, with a small tmpfs that holds the usual devices
/// and nothing else; if with_shm is set, also an empty directory shm. The machine's /dev is not
/// changed. Error: FAILED_PRECONDITION if the kernel refuses.
Status mount_own_dev(bool with_shm);

}  // namespace shoal::shmtest
