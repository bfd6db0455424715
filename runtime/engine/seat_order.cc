#include "runtime/engine/seat_order.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace shoal {

namespace {

/// Sequences that differ in their client's turn alone.
auto group_of(const SeatKey& key) {
  return std::tuple(key.by_priority, key.priority, key.in_turn);
}

/// Whether the step that is being planned leaves a part of the sequence's prompt open.
bool prompt_is_open(const Sequence& sequence) {
  return !sequence.running || (!sequence.decodes() && sequence.scheduled < sequence.missing());
}

}  // namespace

bool resumes(const Sequence& sequence) {
  return sequence.output_tokens() > 0 || sequence.preempted > 0;
}

bool has_aged(const Sequence& sequence) {
  return sequence.overtaken >= kMaxOvertaken || sequence.preempted >= kMaxPreempted;
}

void SeatOrder::enter(Sequence& sequence) {
  Turn& turn = turns_[sequence.request.client];
  if (turn.sequences++ == 0) turn.number = ++last_turn_;
}

void SeatOrder::begin(Sequence& sequence) {
  if (!sequence.lost_blocks) turns_.at(sequence.request.client).number = ++last_turn_;
  sequence.lost_blocks = false;
  leave(sequence);
}

void SeatOrder::leave(Sequence& sequence) {
  const auto turn = turns_.find(sequence.request.client);
  if (--turn->second.sequences == 0) turns_.erase(turn);
}

/// Without the round.
SeatKey SeatOrder::key_of(const Sequence& sequence) const {
  const bool in_turn = !sequence.lost_blocks;
  const bool by_priority = policy_ == SchedulingPolicy::kPriority && !has_aged(sequence);
  return {by_priority,
          by_priority ? sequence.request.priority : 0,
          in_turn,
          0,
          in_turn ? turns_.at(sequence.request.client).number : 0,
          sequence.arrival};
}

std::vector<SeatOrder::Place> SeatOrder::places(const SequenceList& waiting) const {
  std::vector<Place> places;
  std::map<decltype(std::tuple_cat(group_of({}), std::tuple(uint64_t{}))), int32_t> rounds;
  for (const bool first : {true, false}) {
    for (const auto& sequence : waiting) {  // by arrival, so that rounds are in that order
      if (has_aged(*sequence) != first) continue;
      SeatKey key = key_of(*sequence);
      if (key.in_turn) key.round = rounds[std::tuple_cat(group_of(key), std::tuple(key.turn))]++;
      places.push_back({key, sequence.get()});
    }
  }
  return places;
}

std::vector<SeatOrder::Place> SeatOrder::order(const SequenceList& waiting) const {
  std::vector<Place> sorted = places(waiting);
  std::sort(sorted.begin(), sorted.end(),
            [](const Place& a, const Place& b) { return a.key < b.key; });
  return sorted;
}

SeatKey SeatOrder::key_of_new(const std::string& client, int32_t priority, uint64_t arrival,
                              const std::vector<Place>& places) const {
  const bool by_priority = policy_ == SchedulingPolicy::kPriority;
  const auto turn = turns_.find(client);
  SeatKey key{by_priority,
              by_priority ? priority : 0,
              true,
              0,
              turn == turns_.end() ? last_turn_ + 1 : turn->second.number,
              arrival};
  for (const Place& place : places) {
    if (group_of(place.key) == group_of(key) && place.key.turn == key.turn) ++key.round;
  }
  return key;
}

bool SeatOrder::overtakes(const Sequence& sequence, const Sequence& other) const {
  if (&other == &sequence || sequence.lost_blocks || !prompt_is_open(other)) return false;
  if (!other.blocks.empty()) return true;  // it has begun
  if (other.place > 0 && other.place < sequence.place) return true;
  if (other.arrival > sequence.arrival) return false;
  const bool by_priority = policy_ == SchedulingPolicy::kPriority && !has_aged(sequence) &&
                           sequence.request.priority < other.request.priority;
  return by_priority || sequence.request.client == other.request.client;
}

}  // namespace shoal
