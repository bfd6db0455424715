#include "runtime/supervisor/rank_equipment.h"

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/supervisor/rank_logs.h"
#include "runtime/supervisor/rank_segments.h"
#include "runtime/transport/facts/stale_segments.h"

namespace shoal {
namespace {

/// True if this sends NCCL's log to where the front reads it.
bool is_own_log_setting(const SettingOutcome& outcome) {
  return outcome.winner == kSettingIsSet && outcome.name.starts_with("NCCL_DEBUG");
}

/// Empty if the user keeps the log, or if there is no memory for it.
std::vector<Fd> make_logs(int world_size, NcclUse* use) {
  if (use == nullptr || !use->logged) return {};
  Result<std::vector<Fd>> logs = make_rank_logs(world_size);
  if (logs.ok()) return std::move(logs).value();
  log_warning(cat("NCCL's log is not kept: ", explained(logs.status())));
  use->logged = false;
  std::erase_if(use->settings, is_own_log_setting);
  return {};
}

}  // namespace

void RankEquipment::equip(const Rung& rung, const RungContext& context, NcclUse* use,
                          TransportSetup* setup) {
  logs_.clear();
  if (rung.environment == nullptr) return;
  setup->logs = make_logs(context.world_size, use);
  for (int rank = 0; rank < context.world_size; ++rank) {
    std::vector<std::string> variables;
    for (const SettingOutcome& outcome : settle(rung.environment(context, rank), context.user)) {
      if (outcome.winner != kSettingIsSet || (setup->logs.empty() && is_own_log_setting(outcome)))
        continue;
      variables.push_back(cat(outcome.name, "=", outcome.value));
    }
    setup->environment.push_back(std::move(variables));
  }
}

Status RankEquipment::compare(NcclUse* use, const std::vector<pid_t>& living) const {
  if (use == nullptr) return {};
  add_nccl_logs(read_rank_logs(logs_), use);
  // Since 2.30.7 NCCL logs its files only together with each allocation of host memory, which would
  // let the log grow for as long as the ranks run.
  if (!living.empty()) see_nccl_bytes(nccl_bytes_held_by(living), use);
  return check_nccl_use(*use);
}

void RankEquipment::remove_left(const NcclUse* use, const std::string& directory,
                                const Status& failed) const {
  if (use == nullptr) return;
  std::string words = failed.to_string();
  for (const std::string& log : read_rank_logs(logs_)) words += log;
  const SweepResult swept = remove_named_in(directory, words);
  if (!swept.removed.empty())
    log_info(cat("removed ", counted(swept.removed.size(), "file"),
                 " that a failed NCCL had left in /dev/shm"),
             {{"event", "files_removed"},
              {"files", static_cast<int64_t>(swept.removed.size())},
              {"removed_bytes", swept.bytes}});
}

}  // namespace shoal
