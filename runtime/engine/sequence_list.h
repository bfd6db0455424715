#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/engine/sequence.h"

namespace shoal {

/// Sequences in order of arrival.
using SequenceList = std::vector<std::unique_ptr<Sequence>>;

/// The place of a sequence in the list, or the one in which it belongs.
inline SequenceList::iterator place_of(SequenceList& list, const Sequence& sequence) {
  return std::lower_bound(list.begin(), list.end(), sequence.arrival,
                          [](const std::unique_ptr<Sequence>& other, uint64_t arrival) {
                            return other->arrival < arrival;
                          });
}

/// Moves a sequence that is in the first list to its place in the second one.
inline void move_over(SequenceList& from, SequenceList& to, const Sequence& sequence) {
  const auto old_place = place_of(from, sequence);
  std::unique_ptr<Sequence> moved = std::move(*old_place);
  from.erase(old_place);
  to.insert(place_of(to, *moved), std::move(moved));
}

/// The tokens of all sequences together.
inline int64_t total_tokens(const SequenceList& list) {
  return std::accumulate(
      list.begin(), list.end(), int64_t{0},
      [](int64_t sum, const std::unique_ptr<Sequence>& one) { return sum + one->size(); });
}

}  // namespace shoal
