#include "runtime/engine/service_rates.h"

#include <algorithm>

namespace shoal {
namespace {

/// What a rate is made of, at most: about the last minute of a busy server.
constexpr double kKeptTokens = 1 << 14, kKeptBegins = 24;
/// What it takes to tell a rate: a prompt of some length, or a few requests.
constexpr double kLeastTokens = 256, kLeastBegins = 4;

}  // namespace

void ServiceRates::Rate::add(double more_events, double more_seconds, double kept) {
  events += more_events;
  seconds += more_seconds;
  if (events <= kept) return;
  seconds *= kept / events;
  events = kept;
}

std::optional<double> ServiceRates::Rate::seconds_for(double wanted, double least) const {
  if (events < least) return std::nullopt;
  return wanted * seconds / events;
}

void ServiceRates::note(const Step& step) {
  // A step that was not full says how long few tokens take, which is more for each of them.
  if (step.full) prompt_tokens_.add(step.prompt_tokens, step.seconds, kKeptTokens);
  // Requests that find a free place say nothing about how soon places become free.
  if (held_up_) begins_.add(step.begun, step.seconds, kKeptBegins);
  held_up_ = step.held_up;
}

std::optional<double> ServiceRates::seconds_for(const Backlog& backlog) const {
  std::optional<double> longest;
  const auto take = [&longest](const std::optional<double>& seconds) {
    if (seconds) longest = std::max(longest.value_or(0), *seconds);
  };
  if (backlog.prompt_tokens > 0)
    take(prompt_tokens_.seconds_for(static_cast<double>(backlog.prompt_tokens), kLeastTokens));
  if (backlog.begins > 0)
    take(begins_.seconds_for(static_cast<double>(backlog.begins), kLeastBegins));
  return longest;
}

}  // namespace shoal
