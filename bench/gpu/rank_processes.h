#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/world.h"
#include "runtime/comm/device/nccl_collective.h"
#include "runtime/comm/exchange.h"

namespace shoal::gpu {

/// What a rank's process receives.
struct RankPlace {
  World world;
  /// May be called at most kMostExchanges times. DEADLINE_EXCEEDED if a rank gives nothing for 20
  /// s.
  Exchange exchange;
};
inline constexpr int kMostExchanges = 24;

/// What a rank does. It returns the rank's report, which is empty by convention if nothing failed.
using RankBody = std::function<std::string(const RankPlace&)>;

/// Runs the body for all ranks at the same time, each in its own process, and returns their reports
/// by rank. If a signal ends a process, or it is not done after `seconds`, its report says so. Call
/// it from a process that has not used a device, because CUDA does not survive a fork, and that has
/// no other thread.
std::vector<std::string> run_ranks(int world_size, int seconds, const RankBody& body);

/// The same for a single process.
std::string run_apart(int seconds, const std::function<std::string()>& body);

/// Joins the reports that are not empty, one per line with the rank.
std::string all_reports(const std::vector<std::string>& reports);

}  // namespace shoal::gpu
