#pragma once
#include <cstdint>

#include "runtime/engine/recent_median.h"
#include "runtime/engine/scheduler.h"

namespace shoal {

/// What the time of a step depends on.
struct StepSize {
  int32_t decodes = 0;        ///< sequences that get one token each
  int32_t prompt_tokens = 0;  ///< of all prompts together
};

/// The size of a plan. If a step has only the last token of a prompt, this counts as a decode,
/// because it takes as long.
StepSize size_of(const StepPlan& plan);

/// Decides how many tokens of prompts a step may take, from how long earlier steps took. Pure: the
/// caller measures. Not thread-safe.
///
/// A step with decodes should take `decode_stretch` times as long as it would without prompts, so
/// that streams slow down by that factor at most, however much is waiting. No step should take
/// longer than max_step_s, so that cancels and deadlines are heard.
///
/// The next step is given as many tokens as would meet these times if the time of a step were
/// proportional to its tokens. In truth a part of it is the same for every step (the weights are
/// read once), so that a step is never longer than meant because of this, and those that follow
/// come closer and closer. What a step takes without prompts is the median of those that had none.
/// While streams run beside prompts, one step in kYardstickSteps has none, to find it out again.
class StepPace {
 public:
  struct Options {
    double decode_stretch = 0;  ///< above 1; 0: only max_step_s limits a step
    double max_step_s = 0.5;
  };
  static constexpr int kYardstickSteps = 16;

  explicit StepPace(const Options& options) : options_(options) {}

  PrefillBudget budget() const;

  /// A step of this size, planned within budget(), has ended well and took this long.
  void note(const StepSize& size, double seconds);

 private:
  void pace(const StepSize& size, double seconds, double wanted_s, int32_t* budget);
  double beside_decodes_s() const;

  const Options options_;
  RecentMedian decode_s_;    // of steps without prompts
  int since_yardstick_ = 0;  // steps with decodes and prompts since the last one without
  // What the next step of each kind may take.
  int32_t alone_ = 64, beside_decodes_ = 16;
};

}  // namespace shoal
