#pragma once

namespace shoal {

/// A rank's place in its tensor-parallel group.
struct World {
  int rank = 0;
  int size = 1;

  /// The rank before this one. Before rank 0 comes the last.
  int previous() const { return (rank + size - 1) % size; }
};

}  // namespace shoal
