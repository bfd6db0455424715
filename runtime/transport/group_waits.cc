#include "runtime/transport/group_waits.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/cat.h"

namespace shoal {

void RankWaits::add(int64_t steps, double seconds, double waited) {
  const double kept = std::exp(-seconds / kRecentSeconds);
  steps_ += steps;
  seconds_ = seconds_ * kept + seconds;
  waited_ = waited_ * kept + waited;
}

double RankWaits::share() const {
  return seconds_ > 0 ? std::clamp(waited_ / seconds_, 0.0, 1.0) : 0;
}

std::optional<GroupWaits> group_waits(std::span<const RankWaits> ranks) {
  const auto too_few = [](const RankWaits& rank) { return rank.steps() < kLeastSteps; };
  if (ranks.size() < 2 || std::any_of(ranks.begin(), ranks.end(), too_few)) return std::nullopt;
  GroupWaits waits;
  for (const RankWaits& rank : ranks) waits.of_rank.push_back(rank.share());
  std::vector<double> sorted = waits.of_rank;
  std::sort(sorted.begin(), sorted.end());
  const double share = sorted[1] - sorted[0];
  if (share < kLeastShare) return waits;
  const auto least = std::min_element(waits.of_rank.begin(), waits.of_rank.end());
  waits.last = {static_cast<int>(least - waits.of_rank.begin()), share};
  return waits;
}

std::string to_text(const std::optional<GroupWaits>& waits) {
  if (!waits || !waits->last) return "";
  return cat("rank ", waits->last->rank, " makes the others wait ",
             std::lround(waits->last->share * 100), " % of the step");
}

Json to_json(const std::optional<GroupWaits>& waits) {
  if (!waits) return nullptr;
  Json json = {
      {"of_rank", waits->of_rank}, {"rank", nullptr}, {"share", nullptr}, {"text", nullptr}};
  if (waits->last) {
    json["rank"] = waits->last->rank;
    json["share"] = waits->last->share;
    json["text"] = to_text(waits);
  }
  return json;
}

}  // namespace shoal
