#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/needs/budget.h"
#include "runtime/transport/needs/nccl_user_settings.h"

namespace shoal {

/// What a rung's arithmetic and its checks depend on: the group, the machine, and the user's
/// settings.
struct RungContext {
  /// A group of this many ranks, by default on a machine about which nothing is known.
  RungContext(int ranks, HostFacts place = {}) : world_size(ranks), facts(std::move(place)) {}

  int world_size;
  /// How many communicators of NCCL exist at the same time in one /dev/shm, 1 or more. They share
  /// nothing. The need of an NCCL rung is therefore the sum of the needs of all communicators, and
  /// the number of channels is chosen so that all of them fit.
  int communicators = 1;
  HostFacts facts;        ///< includes the NCCL version and ranks per GPU
  NcclUserSettings user;  ///< what the user has set for NCCL
  bool reproducible = true;
  BudgetOptions budget;  ///< for what grows if there is room: NCCL's channels
};

/// A variable that a rung wants in its workers' environment.
struct RungSetting {
  std::string name;
  std::string value;
  /// True: with any other value it would be another rung. If the user has set another value, the
  /// rung is refused.
  bool essential = false;
  /// Other variables. If the user has set one of them, the rung does not set this variable.
  std::vector<std::string> yields_to = {};
};

/// Whose value of a setting is in force.
enum class SettingWinner { kSet, kUser };
inline constexpr SettingWinner kSettingIsSet = SettingWinner::kSet;  ///< the rung's own
inline constexpr SettingWinner kUserWon = SettingWinner::kUser;
const char* name(SettingWinner winner);  ///< "set", "user's won"

/// How a setting that a rung wants was resolved against the user's.
struct SettingOutcome {
  std::string name;
  std::string wanted;  ///< the rung's value
  std::string value;   ///< in force; empty if the user has set another variable instead
  SettingWinner winner = kSettingIsSet;
  /// Where the user has set it: "the environment", "/etc/nccl.conf:3"; empty: the rung's value is
  /// in force.
  std::string source;
  bool operator==(const SettingOutcome&) const = default;
};

/// Decides for each setting of a rung whether its value or the user's is in force. The user's own
/// settings always win.
std::vector<SettingOutcome> settle(const std::vector<RungSetting>& settings,
                                   const NcclUserSettings& user);

/// FAILED_PRECONDITION names the first variable by which the user forbids what a rung needs, and
/// where it is set.
Status check_essential(const char* rung, const std::vector<RungSetting>& settings,
                       const NcclUserSettings& user);

}  // namespace shoal
