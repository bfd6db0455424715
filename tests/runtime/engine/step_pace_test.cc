// The pace of steps on simulated machines: each has a formula for the time of a step, which the
// pace does not know. The real machine is measured in bench/mixed_load.py.
#include "runtime/engine/step_pace.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace shoal {
namespace {

/// Reads weights_s of weights in every step, and computes row_s for each row; what takes longer
/// counts. Row n of a prompt takes `growth` times n longer than the first.
struct Machine {
  double weights_s = 0.030;
  double row_s = 0.010;
  double growth = 0.0002;

  double seconds(const StepSize& size, int32_t position) const {
    const double rows =
        size.decodes + size.prompt_tokens * (1 + growth * (position + size.prompt_tokens / 2.0));
    return std::max(weights_s, rows * row_s) + 0.001;
  }
};

struct Steps {
  std::vector<double> mixed, decodes_alone, prompts_alone;
  int64_t prompt_tokens = 0;
  double seconds = 0;

  double part_of_mixed_longer_than(double limit) const {
    const auto slow =
        std::count_if(mixed.begin(), mixed.end(), [limit](double step) { return step > limit; });
    return static_cast<double>(slow) / static_cast<double>(mixed.size());
  }
  double rate() const { return static_cast<double>(prompt_tokens) / seconds; }
};

/// Runs steps with this many decodes and prompts of 3,000 tokens without an end. disturbance: what
/// a step takes longer.
template <typename Disturbance>
Steps run(const Machine& machine, StepPace& pace, int32_t decodes, int steps,
          const Disturbance& disturbance) {
  Steps result;
  int32_t position = 0;
  for (int step = 0; step < steps; ++step) {
    const PrefillBudget budget = pace.budget();
    const int32_t allowed = std::min(decodes > 0 ? budget.beside_decodes : budget.alone, 512);
    const StepSize size = {decodes, std::min(allowed, 3000 - position)};
    const double seconds = machine.seconds(size, position) + disturbance(step);
    pace.note(size, seconds);
    position = (position + size.prompt_tokens) % 3000;
    result.prompt_tokens += size.prompt_tokens;
    result.seconds += seconds;
    (size.prompt_tokens == 0 ? result.decodes_alone
     : decodes > 0           ? result.mixed
                             : result.prompts_alone)
        .push_back(seconds);
  }
  return result;
}

double undisturbed(int) {
  return 0;
}

TEST(StepPaceTest, StreamsSlowDownByTheStretchWhateverTheMachine) {
  for (const Machine machine : {Machine{}, Machine{0.002, 0.0001, 0.0005}, Machine{0.3, 0.001, 0},
                                Machine{0.0005, 0.01, 0}}) {
    for (const int32_t decodes : {1, 4, 20}) {
      SCOPED_TRACE(machine.weights_s);
      SCOPED_TRACE(decodes);
      StepPace pace({.decode_stretch = 2, .max_step_s = 1e9});
      const double alone = machine.seconds({decodes, 0}, 0);
      const Steps result = run(machine, pace, decodes, 2000, undisturbed);
      // Only while the pace gets to know the machine may a few steps be longer.
      EXPECT_LT(result.part_of_mixed_longer_than(2.1 * alone), 0.01);
      EXPECT_GT(*std::max_element(result.mixed.begin(), result.mixed.end()), 1.5 * alone);
      EXPECT_GE(result.decodes_alone.size(), 2000u / 20);
      EXPECT_LE(result.decodes_alone.size(), 2000u / 15);
    }
  }
}

TEST(StepPaceTest, PromptsKeepMuchOfTheirRate) {
  for (const Machine machine : {Machine{}, Machine{0.002, 0.0001, 0.0005}}) {
    StepPace alone({.decode_stretch = 2, .max_step_s = 1e9});
    StepPace beside({.decode_stretch = 2, .max_step_s = 1e9});
    const double rate = run(machine, alone, 0, 500, undisturbed).rate();
    EXPECT_GT(run(machine, beside, 1, 2000, undisturbed).rate(), 0.4 * rate);
  }
}

TEST(StepPaceTest, NoStepIsPlannedToTakeLongerThanTheLimit) {
  const Machine machine;
  StepPace pace({.decode_stretch = 0, .max_step_s = 0.5});
  const Steps alone = run(machine, pace, 0, 300, undisturbed);
  const Steps mixed = run(machine, pace, 2, 300, undisturbed);
  for (const auto& steps : {alone.prompts_alone, mixed.mixed}) {
    // The first steps measure what a token takes.
    EXPECT_LT(*std::max_element(steps.begin() + 3, steps.end()), 0.55);
    EXPECT_GT(*std::max_element(steps.begin(), steps.end()), 0.4);
  }
  EXPECT_LT(alone.prompts_alone[0], 1.0);
  // Without a stretch nothing has to be compared with.
  EXPECT_LE(mixed.decodes_alone.size(), 1u);
}

TEST(StepPaceTest, APauseOfTheMachineIsForgotten) {
  const Machine machine;
  const auto pauses = [](int step) { return step % 50 == 20 ? 5.0 : 0.0; };
  StepPace calm({.decode_stretch = 2}), disturbed({.decode_stretch = 2});
  const double rate = run(machine, calm, 1, 2000, undisturbed).rate();
  Steps result = run(machine, disturbed, 1, 2000, pauses);
  result.seconds -= 2000 / 50 * 5.0;
  EXPECT_GT(result.rate(), 0.85 * rate);
  EXPECT_LT(result.part_of_mixed_longer_than(2.1 * machine.seconds({1, 0}, 0)), 0.05);
}

TEST(StepPaceTest, MoreStreamsGetTheirOwnYardstick) {
  const Machine machine{0.030, 0.010, 0};
  StepPace pace({.decode_stretch = 2});
  (void)run(machine, pace, 1, 200, undisturbed);
  (void)run(machine, pace, 20, StepPace::kYardstickSteps + 1, undisturbed);
  const Steps later = run(machine, pace, 20, 200, undisturbed);
  const double alone = machine.seconds({20, 0}, 0);
  EXPECT_GT(*std::max_element(later.mixed.begin(), later.mixed.end()), 1.5 * alone);
  EXPECT_LT(later.part_of_mixed_longer_than(2.1 * alone), 0.03);
}

TEST(StepPaceTest, AtLeastOneTokenAlwaysGoes) {
  const Machine slow{0.001, 3.0, 0};  // three seconds for a token
  StepPace pace({.decode_stretch = 2, .max_step_s = 0.5});
  EXPECT_EQ(run(slow, pace, 0, 50, undisturbed).prompts_alone.size(), 50u);
  EXPECT_EQ(pace.budget().alone, 1);
  (void)run(slow, pace, 1, 50, undisturbed);
  const PrefillBudget budget = pace.budget();
  EXPECT_TRUE(budget.beside_decodes == 1 || budget.beside_decodes == 0);
}

TEST(StepPaceTest, FewTokensTellNothing) {
  const Machine machine;
  StepPace pace({.decode_stretch = 2});
  (void)run(machine, pace, 0, 50, undisturbed);
  const int32_t before = pace.budget().alone;
  for (int i = 0; i < 20; ++i) pace.note({0, 1}, 0.031);  // the last token of a prompt
  EXPECT_EQ(pace.budget().alone, before);
}

}  // namespace
}  // namespace shoal
