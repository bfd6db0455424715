#include "runtime/engine/step_pace.h"

#include <algorithm>

namespace shoal {
namespace {

/// The most tokens that are ever asked for; the scheduler has a lower limit.
constexpr int32_t kMostTokens = 1 << 20;
/// From one step to the next the budget grows by this factor at most, because a step that takes no
/// time that can be measured says nothing about a much larger one.
constexpr int32_t kGrowth = 4;

}  // namespace

StepSize size_of(const StepPlan& plan) {
  StepSize size;
  for (const SequenceStep& sequence : plan.sequences) {
    const bool decode = sequence.sample && sequence.token_ids.size() == 1;
    (decode ? size.decodes : size.prompt_tokens) += static_cast<int32_t>(sequence.token_ids.size());
  }
  return size;
}

PrefillBudget StepPace::budget() const {
  const bool yardstick =
      options_.decode_stretch > 0 && (!decode_s_.get() || since_yardstick_ >= kYardstickSteps);
  return {.alone = alone_, .beside_decodes = yardstick ? 0 : beside_decodes_};
}

/// How long a step with decodes and prompts should take.
double StepPace::beside_decodes_s() const {
  if (options_.decode_stretch <= 0) return options_.max_step_s;
  return std::min(options_.max_step_s, options_.decode_stretch * decode_s_.get().value_or(0));
}

void StepPace::note(const StepSize& size, double seconds) {
  if (size.prompt_tokens == 0) {
    decode_s_.add(seconds);
    since_yardstick_ = 0;
  } else if (size.decodes == 0) {
    pace(size, seconds, options_.max_step_s, &alone_);
  } else {
    ++since_yardstick_;
    pace(size, seconds, beside_decodes_s(), &beside_decodes_);
  }
}

/// Sets the budget of the next step after one that was to take wanted_s.
void StepPace::pace(const StepSize& size, double seconds, double wanted_s, int32_t* budget) {
  // A step with few tokens, the last ones of a prompt, says little about one with many.
  if (size.prompt_tokens < *budget / 2 && seconds <= wanted_s) return;
  const double tokens = size.decodes + size.prompt_tokens;
  const double next = seconds > 0 ? tokens * wanted_s / seconds - size.decodes : kMostTokens;
  const int32_t most = std::min(kGrowth * size.prompt_tokens, kMostTokens);
  *budget = next >= most ? std::max(most, 1) : std::max(static_cast<int32_t>(next), 1);
}

}  // namespace shoal
