#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/needs/nccl_user_settings.h"

namespace shoal {

/// What a rung's arithmetic and its checks depend on: the group, the place, and what the user
/// wants.
struct RungContext {
  /// A group of so many ranks; by default in a place of which nothing is known.
  RungContext(int ranks, HostFacts place = {}) : world_size(ranks), facts(std::move(place)) {}

  int world_size;
  HostFacts facts;        ///< version of NCCL and ranks on one GPU among it
  NcclUserSettings user;  ///< of NCCL
  bool reproducible = true;
  BudgetOptions budget;  ///< for what may be larger where there is room: NCCL's channels
};

/// A variable that a rung wants in its workers' environment.
struct RungSetting {
  std::string name;
  std::string value;
  /// The rung is not itself with any other value: where the user has set another one, the rung is
  /// refused.
  bool essential = false;
  /// Other variables whose setting by the user stands for one of this too.
  std::vector<std::string> yields_to = {};
};

inline constexpr const char* kSettingIsSet = "set";
inline constexpr const char* kUserWon = "user's won";

/// What became of it.
struct SettingOutcome {
  std::string name;
  std::string wanted;  ///< the rung's value
  std::string value;   ///< in force; empty where another variable of the user's stands for it
  std::string winner;  ///< kSettingIsSet or kUserWon
  std::string source;  ///< of the user's: "the environment", "/etc/nccl.conf:3"; empty: the rung's
  bool operator==(const SettingOutcome&) const = default;
};

/// The user's own settings win, always.
std::vector<SettingOutcome> settle(const std::vector<RungSetting>& settings,
                                   const NcclUserSettings& user);

/// FAILED_PRECONDITION names the first variable by which the user forbids what a rung needs, and
/// where it is set.
Status check_essential(const char* rung, const std::vector<RungSetting>& settings,
                       const NcclUserSettings& user);

}  // namespace shoal
