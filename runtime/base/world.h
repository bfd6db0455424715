#pragma once

namespace shoal {

/// A rank's place in its tensor-parallel group.
struct World {
  int rank = 0;
  int size = 1;
};

}  // namespace shoal
