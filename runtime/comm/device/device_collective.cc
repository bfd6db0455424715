#include "runtime/comm/device/device_collective.h"

#include <utility>

namespace shoal {

WaitState wait_state_in(const DeviceCollective& collective, uint64_t number, std::string what) {
  std::optional<std::vector<int>> missing = collective.missing();
  WaitState state{number, std::move(what), {}, !missing};
  if (missing) {
    state.waits_for = std::move(*missing);
    return state;
  }
  const World world = collective.world();
  for (int rank = 0; rank < world.size; ++rank) {
    if (rank != world.rank) state.waits_for.push_back(rank);
  }
  return state;
}

}  // namespace shoal
