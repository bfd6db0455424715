#pragma once
#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// What a command showed that exited with this code in a /dev/shm of 4 KiB.
inline Outcome exited(int code) {
  Outcome outcome;
  outcome.condition = "4k";
  outcome.end = End::kExited;
  outcome.exit_code = code;
  return outcome;
}

}  // namespace shoal::shmtest
