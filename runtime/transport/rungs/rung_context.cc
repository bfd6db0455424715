#include "runtime/transport/rungs/rung_context.h"

namespace shoal {
namespace {

/// The user's setting that replaces one of a rung's; nullptr: none.
const NcclUserSetting* in_the_way(const RungSetting& setting, const NcclUserSettings& user) {
  if (const NcclUserSetting* own = user.find(setting.name)) return own;
  for (const std::string& name : setting.yields_to) {
    if (const NcclUserSetting* other = user.find(name)) return other;
  }
  return nullptr;
}

}  // namespace

const char* name(SettingWinner winner) {
  return winner == kSettingIsSet ? "set" : "user's won";
}

std::vector<SettingOutcome> settle(const std::vector<RungSetting>& settings,
                                   const NcclUserSettings& user) {
  std::vector<SettingOutcome> outcomes;
  for (const RungSetting& setting : settings) {
    const NcclUserSetting* theirs = in_the_way(setting, user);
    if (theirs == nullptr) {
      outcomes.push_back({setting.name, setting.value, setting.value, kSettingIsSet, ""});
      continue;
    }
    const bool same_name = theirs->name == setting.name;
    outcomes.push_back({setting.name, setting.value, same_name ? theirs->value : "", kUserWon,
                        same_name ? theirs->source : cat(theirs->name, " of ", theirs->source)});
  }
  return outcomes;
}

Status check_essential(const char* rung, const std::vector<RungSetting>& settings,
                       const NcclUserSettings& user) {
  for (const RungSetting& setting : settings) {
    const NcclUserSetting* theirs = user.find(setting.name);
    if (!setting.essential || theirs == nullptr || theirs->value == setting.value) continue;
    return Status::error(Code::kFailedPrecondition,
                         cat(theirs->name, "=", theirs->value, " of ", theirs->source, " forbids ",
                             rung, " under Shoal's settings (Shoal sets it to ", setting.value,
                             "): unset ", theirs->name, " there to allow the transport"));
  }
  return {};
}

}  // namespace shoal
