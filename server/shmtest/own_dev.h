#pragma once
#include "runtime/base/status.h"

namespace shoal::shmtest {

/// Covers /dev, in a mount namespace of our own, by a small tmpfs that holds the usual devices and
/// nothing else; with_shm: and an empty directory shm. The machine's /dev stays what it is.
/// FAILED_PRECONDITION: the kernel refuses.
Status mount_own_dev(bool with_shm);

}  // namespace shoal::shmtest
