#include "runtime/transport/facts/fact_names.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

using Outcome = GpuPeerVerdict::Outcome;

constexpr std::pair<LeftFileState, std::string_view> kStates[] = {
    {LeftFileState::kStale, "stale"},
    {LeftFileState::kInUse, "in use"},
    {LeftFileState::kOtherUser, "other user"},
    {LeftFileState::kUnknown, "unknown"},
};
constexpr std::pair<GpuErrorAt, std::string_view> kPlaces[] = {
    {GpuErrorAt::kNowhere, ""},    {GpuErrorAt::kFind, "find"},   {GpuErrorAt::kLoad, "load"},
    {GpuErrorAt::kFacts, "facts"}, {GpuErrorAt::kProbe, "probe"},
};
/// A word that ends in a space is followed by a detail.
constexpr std::pair<Outcome, std::string_view> kOutcomes[] = {
    {Outcome::kOk, "ok"},           {Outcome::kCorrupt, "corrupt "},
    {Outcome::kHung, "hung"},       {Outcome::kNotTried, "not tried"},
    {Outcome::kFailed, "failed: "},
};

template <typename Table, typename Enum>
std::string_view word_of(const Table& table, Enum value) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& e) { return e.first == value; });
  return found->second;
}

template <typename Table, typename Enum>
bool find_word(const Table& table, std::string_view text, Enum* value) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& e) { return e.second == text; });
  if (found == std::end(table)) return false;
  *value = found->first;
  return true;
}

}  // namespace

std::string to_text(LeftFileState state) {
  return std::string(word_of(kStates, state));
}

bool from_text(std::string_view text, LeftFileState* state) {
  return find_word(kStates, text, state);
}

std::string to_text(GpuErrorAt at) {
  return std::string(word_of(kPlaces, at));
}

bool from_text(std::string_view text, GpuErrorAt* at) {
  return find_word(kPlaces, text, at);
}

std::string to_text(const GpuPeerVerdict& verdict) {
  return cat(word_of(kOutcomes, verdict.outcome), verdict.detail);
}

bool from_text(std::string_view text, GpuPeerVerdict* verdict) {
  for (const auto& [outcome, word] : kOutcomes) {
    const bool has_detail = word.ends_with(' ');
    if (has_detail ? !text.starts_with(word) : text != word) continue;
    verdict->outcome = outcome;
    verdict->detail = text.substr(word.size());
    return true;
  }
  return false;
}

}  // namespace shoal
