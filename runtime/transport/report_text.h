#pragma once
#include <string>
#include <vector>

#include "runtime/transport/report.h"

namespace shoal {

/// How a verdict calls the ranks.
enum class RankWords {
  kPlain,   ///< "2 ranks"
  kShoals,  ///< "2 of Shoal's ranks", for the author of another engine
};

/// Some lines for people: verdict, rung and figures, refusals with numbers, remedies. `colour`: the
/// word of the verdict has one.
std::string to_text(const TransportReport& report, bool colour = false,
                    RankWords words = RankWords::kPlain);

/// "remedy (mount): TITLE", with what to paste below it; without the place if it is in no list.
std::string to_text(const std::vector<Remedy>& remedies);

/// "OK: 2 ranks use shm.", or what is worse and by how much. No newline. `colour`: the first word
/// has one.
std::string verdict_text(const TransportReport& report, bool colour = false,
                         RankWords words = RankWords::kPlain);

/// "no transport works for 2 ranks", or "none of --transport shm works for 2 ranks". Precondition:
/// no rung is in use.
std::string none_works_text(const TransportReport& report);

/// "shm does not fit into /dev/shm for 2 ranks, and the policy (--min-transport shm) allows nothing
/// else". Precondition: the policy has ended the start.
std::string forbidden_text(const TransportReport& report);

/// "; without it, memfd may work" for a list that leaves memfd out; or empty.
std::string may_work_text(const TransportReport& report);

/// "transport shm for 2 ranks: 8 KiB all-reduce 1.2 us, ..., verified in 0.01 s", without times of
/// an all-reduce if they are noisy. No newline. Precondition: a rung is in use.
std::string figures_text(const TransportReport& report);

/// The lines of `text`, each after `indent` and with a newline.
std::string indented(const std::string& text, const std::string& indent);

}  // namespace shoal
