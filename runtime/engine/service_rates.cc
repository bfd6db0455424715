#include "runtime/engine/service_rates.h"

#include <algorithm>

namespace shoal {
namespace {

/// What a rate is made of, at most: about the last minute of a busy server, or the last seconds.
constexpr double kTokensLately = 1 << 14, kTokensNow = 1 << 11;
constexpr double kTokenSecondsLately = 60, kTokenSecondsNow = 5;
constexpr double kBeginsLately = 24, kBeginsNow = 6;
constexpr double kBeginSecondsLately = 600, kBeginSecondsNow = 120;
/// There is no rate before this many tokens or requests have been measured.
constexpr double kLeastTokens = 16, kLeastBegins = 4;

}  // namespace

ServiceRates::ServiceRates()
    : prompt_tokens_{{kTokensLately, kTokenSecondsLately}, {kTokensNow, kTokenSecondsNow}} {
  forget_begins();
}

void ServiceRates::forget_begins() {
  begins_ = {{kBeginsLately, kBeginSecondsLately}, {kBeginsNow, kBeginSecondsNow}};
}

void ServiceRates::Rate::add(double more_events, double more_seconds) {
  events += more_events;
  seconds += more_seconds;
  const double too_much = std::max({1.0, events / most_events, seconds / most_seconds});
  events /= too_much;
  seconds /= too_much;
}

void ServiceRates::Rates::add(double events, double seconds) {
  lately.add(events, seconds);
  now.add(events, seconds);
}

double sure_factor(double decode_stretch) {
  constexpr double kLeast = 2;
  return decode_stretch > 1 ? std::max(kLeast, decode_stretch / (decode_stretch - 1)) : kLeast;
}

void ServiceRates::note(const Step& step) {
  // A step that was not full says how long few tokens take, which is more for each of them. If it
  // is less than by the rate, the engine has become faster.
  if (step.full || step.seconds < prompt_tokens_.lately.seconds_for(step.prompt_tokens))
    prompt_tokens_.add(step.prompt_tokens, step.seconds);
  // Requests that find a free place say nothing about how soon places become free.
  if (held_up_) begins_.add(step.begun, step.seconds);
  held_up_ = step.held_up;
}

/// time(rates, wanted): how long this many events take.
template <typename Time>
std::optional<double> ServiceRates::longer_of(const Backlog& backlog, Time time) const {
  std::optional<double> longest;
  const auto take = [&](const Rates& rates, int64_t wanted, double least) {
    if (wanted <= 0 || rates.lately.events < least) return;
    longest = std::max(longest.value_or(0), time(rates, static_cast<double>(wanted)));
  };
  take(prompt_tokens_, backlog.prompt_tokens, kLeastTokens);
  take(begins_, backlog.begins, kLeastBegins);
  return longest;
}

std::optional<double> ServiceRates::seconds_for(const Backlog& backlog) const {
  return longer_of(
      backlog, [](const Rates& rates, double wanted) { return rates.lately.seconds_for(wanted); });
}

std::optional<double> ServiceRates::least_seconds_for(const Backlog& backlog) const {
  return longer_of(backlog, [](const Rates& rates, double wanted) {
    return std::min(rates.lately.seconds_for(wanted), rates.now.seconds_for(wanted));
  });
}

}  // namespace shoal
