#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace shoal {

/// How much of one rank's steps was waiting for other ranks. Older steps count less: those that
/// were kRecentSeconds of steps ago count 1/e times as much as new ones.
class RankWaits {
 public:
  static constexpr double kRecentSeconds = 60;

  /// Adds steps that took `seconds` together, in which the rank waited for `waited` seconds.
  void add(int64_t steps, double seconds, double waited);

  int64_t steps() const { return steps_; }
  /// The share of the steps' time, 0 to 1.
  double share() const;

 private:
  int64_t steps_ = 0;  // of all time
  double seconds_ = 0, waited_ = 0;
};

/// Who waits for whom in a group, from what each rank has counted for itself.
///
/// In each sum the rank that comes last waits for nobody, and the others wait for it. So the rank
/// that waits least is the one that makes the others wait. What all ranks wait for alike, such as
/// the time in which bytes travel, is nobody's fault and must not count: a rank's waiting counts
/// only as far as it is more than the least. Of the other ranks the one that waits least decides,
/// because this is what every one of them would gain if the last rank were as fast as the next
/// slowest. Two ranks that are slow together therefore do not stand out; of_rank shows them.
struct GroupWaits {
  /// A rank that makes the others wait.
  struct Last {
    int rank = 0;
    double share = 0;  ///< of a step's time, 0 to 1
  };

  std::vector<double> of_rank;  ///< how much of its steps each rank waits, 0 to 1
  std::optional<Last> last;     ///< nullopt: no rank stands out by kLeastShare
};

/// A smaller share is not told: the figures are not more exact than that.
inline constexpr double kLeastShare = 0.05;
/// Nothing is said before each rank has counted this many steps.
inline constexpr int64_t kLeastSteps = 10;

/// Nullopt: there is one rank, or one of them has counted too few steps, because it has just begun
/// or because it cannot tell that it waits.
std::optional<GroupWaits> group_waits(std::span<const RankWaits> ranks);

/// "rank 2 makes the others wait 41 % of the step"; empty if no rank stands out or nothing is
/// known.
std::string to_text(const std::optional<GroupWaits>& waits);

/// {"of_rank", "rank", "share", "text"}, of which the last three are null if no rank stands out;
/// null if nothing is known.
Json to_json(const std::optional<GroupWaits>& waits);

}  // namespace shoal
