#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace shoal {

/// The share of one rank's steps in which it waited for other ranks, and the share in which it
/// waited for the previous rank alone. Older steps count less: a step after which steps of
/// kRecentSeconds have run counts 1/e times as much as a new one.
class RankWaits {
 public:
  static constexpr double kRecentSeconds = 60;

  /// Adds steps that took `seconds` together. In these steps the rank waited for `waited` seconds.
  /// During `for_previous` seconds of that wait only the previous rank was missing.
  void add(int64_t steps, double seconds, double waited, double for_previous);

  int64_t steps() const { return steps_; }
  /// Shares of the steps' time, 0 to 1.
  double share() const { return share_of(waited_); }
  double share_for_previous() const { return share_of(for_previous_); }

 private:
  double share_of(double waited) const;

  int64_t steps_ = 0;  // of all time
  double seconds_ = 0, waited_ = 0, for_previous_ = 0;
};

/// Who waits for whom in a group, from what each rank has counted for itself.
///
/// A rank makes the others wait while only its contribution to a sum is missing. The sum would end
/// that much earlier if the rank came together with the next slowest one. Any other rank could
/// count this time. The next rank counts it, so that each rank counts for exactly one other rank
/// and no rank is left out. The time that a rank itself waits in other sums is not subtracted. It
/// waits there because it has less work or because another rank is held up, and neither makes its
/// own lateness cheaper. If two ranks are late together, both have small shares. They can still be
/// seen in of_rank, because they wait less than the others.
struct GroupWaits {
  /// A rank that makes the others wait.
  struct Last {
    int rank = 0;
    double share = 0;  ///< its entry in for_rank
  };

  std::vector<double> of_rank;   ///< how much of its steps each rank waits, 0 to 1
  std::vector<double> for_rank;  ///< how much of a step the others wait for each rank, 0 to 1
  std::optional<Last> last;  ///< nullopt: none is waited for by kLeastShare more than the others
};

/// A smaller difference is not told: the figures are not more exact than that.
inline constexpr double kLeastShare = 0.05;
/// Nothing is said before each rank has counted this many steps.
inline constexpr int64_t kLeastSteps = 10;

/// Nullopt: there is one rank, or one of them has counted too few steps, because it has just begun
/// or because it cannot tell that it waits.
std::optional<GroupWaits> group_waits(std::span<const RankWaits> ranks);

/// "rank 2 makes the others wait 41 % of the step"; empty if no rank stands out or nothing is
/// known.
std::string to_text(const std::optional<GroupWaits>& waits);

/// {"of_rank", "for_rank", "rank", "share", "text"}, of which the last three are null if no rank
/// stands out; null if nothing is known.
Json to_json(const std::optional<GroupWaits>& waits);

}  // namespace shoal
