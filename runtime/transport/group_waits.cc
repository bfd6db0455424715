#include "runtime/transport/group_waits.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/cat.h"

namespace shoal {

void RankWaits::add(int64_t steps, double seconds, double waited, double for_previous) {
  const double kept = std::exp(-seconds / kRecentSeconds);
  steps_ += steps;
  seconds_ = seconds_ * kept + seconds;
  waited_ = waited_ * kept + waited;
  for_previous_ = for_previous_ * kept + for_previous;
}

double RankWaits::share_of(double waited) const {
  return seconds_ > 0 ? std::clamp(waited / seconds_, 0.0, 1.0) : 0;
}

std::optional<GroupWaits> group_waits(std::span<const RankWaits> ranks) {
  const auto too_few = [](const RankWaits& rank) { return rank.steps() < kLeastSteps; };
  if (ranks.size() < 2 || std::any_of(ranks.begin(), ranks.end(), too_few)) return std::nullopt;
  GroupWaits waits;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    waits.of_rank.push_back(ranks[rank].share());
    waits.for_rank.push_back(ranks[(rank + 1) % ranks.size()].share_for_previous());
  }
  std::vector<double> sorted = waits.for_rank;
  std::sort(sorted.rbegin(), sorted.rend());
  if (sorted[0] - sorted[1] < kLeastShare) return waits;
  const auto most = std::max_element(waits.for_rank.begin(), waits.for_rank.end());
  waits.last = {static_cast<int>(most - waits.for_rank.begin()), *most};
  return waits;
}

std::string to_text(const std::optional<GroupWaits>& waits) {
  if (!waits || !waits->last) return "";
  return cat("rank ", waits->last->rank, " makes the others wait ",
             std::lround(waits->last->share * 100), " % of the step");
}

Json to_json(const std::optional<GroupWaits>& waits) {
  if (!waits) return nullptr;
  Json json = {{"of_rank", waits->of_rank},
               {"for_rank", waits->for_rank},
               {"rank", nullptr},
               {"share", nullptr},
               {"text", nullptr}};
  if (waits->last) {
    json["rank"] = waits->last->rank;
    json["share"] = waits->last->share;
    json["text"] = to_text(waits);
  }
  return json;
}

}  // namespace shoal
