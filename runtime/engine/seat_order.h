#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/engine/scheduling_policy.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/sequence_list.h"

namespace shoal {

/// At most this many later requests begin their prompt before an earlier one has ended its own.
inline constexpr int32_t kMaxOvertaken = 16;
/// A sequence that has lost its blocks this often keeps them from then on, unless an earlier
/// sequence needs them.
inline constexpr int32_t kMaxPreempted = 3;

/// Whether the sequence was running before: it has output already, or was preempted during its
/// prompt.
bool resumes(const Sequence& sequence);
/// Whether it has been overtaken kMaxOvertaken times or preempted kMaxPreempted times. From then on
/// no priority counts against it, and its prompt goes before others.
bool has_aged(const Sequence& sequence);

/// Where a sequence stands among those that wait for a seat. What is smaller goes first.
struct SeatKey {
  bool by_priority = false;  ///< its priority counts
  int32_t priority = 0;      ///< 0 if it does not
  bool in_turn = false;      ///< false: it goes before all that wait for their client's turn
  int32_t round = 0;         ///< how many requests of its client go before it
  uint64_t turn = 0;         ///< of its client
  uint64_t arrival = 0;
  auto operator<=>(const SeatKey&) const = default;
};

/// The order in which waiting sequences get seats. Clients take turns. Each turn gives one seat,
/// and the next turn is that of the client whose last turn was longest ago. A new client joins at
/// the end. Among the sequences of one client, one that was overtaken often enough goes first. If
/// there is none, the earliest one goes first. A better priority goes before any turn, and so does
/// a sequence that has lost its blocks. Not thread-safe.
class SeatOrder {
 public:
  explicit SeatOrder(SchedulingPolicy policy) : policy_(policy) {}

  /// The sequence has no blocks from now on: it has come, or lost them.
  void enter(Sequence& sequence);
  /// It begins, which was its client's turn.
  void begin(Sequence& sequence);
  /// It has ended without blocks.
  void leave(Sequence& sequence);

  struct Place {
    SeatKey key;
    Sequence* sequence = nullptr;
  };
  /// Those that wait, in no order.
  std::vector<Place> places(const SequenceList& waiting) const;
  /// The same, the first one first.
  std::vector<Place> order(const SequenceList& waiting) const;
  /// Where a sequence of this client would stand among the `places` if it came now.
  SeatKey key_of_new(const std::string& client, int32_t priority, uint64_t arrival,
                     const std::vector<Place>& places) const;

  /// Whether `sequence`, if it begins in this step, goes before `other`, which has not ended its
  /// prompt, although it is not its turn.
  bool overtakes(const Sequence& sequence, const Sequence& other) const;

 private:
  struct Turn {
    uint64_t number = 0;
    int64_t sequences = 0;  // that have entered and have not begun
  };
  SeatKey key_of(const Sequence& sequence) const;

  const SchedulingPolicy policy_;
  std::unordered_map<std::string, Turn> turns_;  // of the clients with a sequence here
  uint64_t last_turn_ = 0;
};

}  // namespace shoal
