#include "runtime/supervisor/device_holders.h"

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/supervisor/process_end.h"
#include "runtime/supervisor/process_state.h"

namespace shoal {

void DeviceHolders::left_behind(int rank, pid_t process) {
  if (on_devices_) left_behind_.emplace_back(rank, process);
}

std::optional<Failure> DeviceHolders::held() {
  std::erase_if(left_behind_, [this](const std::pair<int, pid_t>& one) {
    if (!take_end(one.second)) return false;
    log_info(cat("rank ", one.first, " (pid ", one.second,
                 "), which was left behind, has ended: ", gpu_of(one.first), " is free of it"),
             {{"event", "rank_gone"}, {"lost_rank", one.first}, {"lost_pid", one.second}});
    return true;
  });
  if (left_behind_.empty()) return std::nullopt;
  const auto& [rank, process] = left_behind_.front();
  return Failure{
      Status::error(Code::kAborted,
                    cat("rank ", rank, " (pid ", process, ", state ", process_state(process),
                        ") was killed, has not ended, and holds ", gpu_of(rank),
                        ", which the rank that replaces it needs"))
          .blamed_on(Fault::kShortage),
      Phase::kSpawn, rank, Fault::kShortage};
}

std::string DeviceHolders::ended_text(int rank) const {
  const auto is_of_rank = [rank](const std::pair<int, pid_t>& one) { return one.first == rank; };
  if (!on_devices_ || rank < 0 || rank >= static_cast<int>(lost_.size()) ||
      std::any_of(left_behind_.begin(), left_behind_.end(), is_of_rank))
    return "";
  return cat("rank ", rank, " (pid ", lost_[static_cast<size_t>(rank)], "), which had ",
             gpu_of(rank), ", has ended");
}

std::string DeviceHolders::gpu_of(int rank) const {
  const int index = rank / ranks_per_gpu_;
  const auto at = static_cast<size_t>(index);
  return to_text(at < gpus_.size() ? gpus_[at] : GpuName{index});
}

}  // namespace shoal
