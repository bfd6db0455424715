#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/world.h"
#include "runtime/comm/device/nccl_collective.h"

namespace shoal::gpu {

/// What a rank's process is given.
struct RankPlace {
  World world;
  ExchangeBytes exchange;  ///< kMostExchanges times at most; DEADLINE_EXCEEDED where a rank brings
                           ///< nothing in 20 s
};
inline constexpr int kMostExchanges = 24;

/// What a rank does; the result is its report, by custom empty when all is well.
using RankBody = std::function<std::string(const RankPlace&)>;

/// Runs the body in a process for each rank at the same time and returns their reports by rank; a
/// process that a signal ends, or that is not done after `seconds`, is reported so. CUDA does not
/// survive a fork: call it from a process that has not touched a device, with no other thread
/// alive.
std::vector<std::string> run_ranks(int world_size, int seconds, const RankBody& body);

/// The same for one process alone.
std::string run_apart(int seconds, const std::function<std::string()>& body);

/// The reports that are not empty, one a line with the rank.
std::string all_reports(const std::vector<std::string>& reports);

}  // namespace shoal::gpu
