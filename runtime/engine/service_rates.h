#pragma once
#include <cstdint>
#include <optional>

#include "runtime/engine/request.h"

namespace shoal {

/// Measures how fast the engine serves waiting requests. From this it estimates how long a backlog
/// takes. Pure, and not thread-safe.
///
/// Either of two things holds requests up: the tokens of prompts that a step may take, or the
/// places and KV blocks that running requests have until they end. Each has a rate of its own, and
/// a backlog takes the longer of the two times.
class ServiceRates {
 public:
  struct Step {
    double seconds = 0;
    int32_t prompt_tokens = 0;
    bool full = false;     ///< it took as many tokens of prompts as it was allowed to
    int32_t begun = 0;     ///< requests that were in a step for the first time
    bool held_up = false;  ///< requests wait because no place or too few KV blocks are free
  };
  ServiceRates();

  /// Records a step that has ended well.
  void note(const Step& step);

  /// Forgets how many requests begin per second. To be called when no request has waited for a
  /// while: the next queue may move at quite another speed.
  void forget_begins();

  /// How long the backlog takes if the rates stay as they were lately; nullopt before there are
  /// rates.
  std::optional<double> seconds_for(const Backlog& backlog) const;
  /// The same by the rates of the last moments, if these are higher. A long time in which hardly
  /// anything went on is soon forgotten in this way.
  std::optional<double> least_seconds_for(const Backlog& backlog) const;

 private:
  /// Events and the time that they took. Both fade, so that the rate is that of the last ones.
  struct Rate {
    double most_events, most_seconds;
    double events = 0, seconds = 0;
    void add(double more_events, double more_seconds);
    double seconds_for(double wanted) const { return events > 0 ? wanted * seconds / events : 0; }
  };
  struct Rates {
    Rate lately, now;
    void add(double events, double seconds);
  };
  template <typename Time>
  std::optional<double> longer_of(const Backlog& backlog, Time time) const;

  Rates prompt_tokens_, begins_;
  bool held_up_ = false;  // at the end of the last step
};

/// A request is refused as too late only if it would be too late at this many times the measured
/// speed. The engine may get faster: streams may end early, and a step without streams takes
/// stretch / (stretch - 1) times as many tokens of prompts in the same time as one beside them.
/// decode_stretch: as in StepPace::Options.
double sure_factor(double decode_stretch);

}  // namespace shoal
