#pragma once
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/failure.h"
#include "runtime/supervisor/rank_process.h"
#include "runtime/supervisor/worker_group.h"

namespace shoal {

/// Tells the caller of a start what all ranks have got through: each phase once, in their order,
/// and after the self-test its figures. Not thread-safe.
class PhaseNews {
 public:
  explicit PhaseNews(bool transport_only) : transport_only_(transport_only) {}

  /// Call it whenever a rank may have got further.
  void tell(const std::vector<RankProcess>& ranks, const StartControl& control);

 private:
  bool has_left(const RankProcess& rank, Phase phase) const;

  const bool transport_only_;
  Phase next_ = Phase::kSpawn;  // the first that has not been told
  Clock::time_point since_ = Clock::now();
};

}  // namespace shoal
