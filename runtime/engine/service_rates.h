#pragma once
#include <cstdint>
#include <optional>

#include "runtime/engine/request.h"

namespace shoal {

/// How fast the engine works off what waits, measured while something waits, and therefore how long
/// a backlog takes. Pure, and not thread-safe.
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
  /// Records a step that has ended well.
  void note(const Step& step);

  /// How long the backlog takes if the rates stay as they were lately; nullopt before there are
  /// rates.
  std::optional<double> seconds_for(const Backlog& backlog) const;

 private:
  /// Events and the time that they took. Both fade, so that the rate is that of the last `kept`
  /// events.
  struct Rate {
    double events = 0, seconds = 0;
    void add(double more_events, double more_seconds, double kept);
    std::optional<double> seconds_for(double wanted, double least) const;
  };
  Rate prompt_tokens_;
  Rate begins_;
  bool held_up_ = false;  // at the end of the last step
};

/// A request surely comes too late only if it does so even when everything goes this many times as
/// fast as lately: a step without streams takes twice as many tokens of prompts as one beside them,
/// and streams may end early.
inline constexpr double kSureFactor = 2;

}  // namespace shoal
