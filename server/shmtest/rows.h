#pragma once
#include <string>
#include <vector>

#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

// What people read of each condition: a line when it ends, and a row of the table. `colour`: the
// verdicts have colours.

/// "pass", "FAIL" or "skip".
const char* verdict(const Outcome& outcome);

/// Whether the command was there, so that something could be seen of it.
bool ran(const Outcome& outcome);

/// The outcome's reason for people, who may have asked that errors pass: that the control must exit
/// with 0 all the same is said where it did not.
std::string reason_text(const Outcome& outcome);

/// One line for stderr, printed when a condition ends. of: how many there are, 0 if that is
/// unknown.
std::string progress_line(const Outcome& outcome, size_t number, size_t of, bool colour = false);

/// The table of a search grows while it runs, so that people see every step at once, and once: the
/// row of a step that has ended, with the table's heading above the first. It has no figure of what
/// was seen in /dev/shm, because the size is what the search finds.
std::string search_row(const Outcome& outcome, bool first, bool colour = false);

/// The least width of the column of conditions, in which the name of every size fits.
inline constexpr size_t kLeastWidth = 10;

std::string table_heading(size_t width);
std::string table_row(const Outcome& outcome, size_t width, bool colour);

/// What the figures of "shm seen" are worth, below a table that has some, and what "no look" and
/// "killed first" mean.
std::string looks_text(const std::vector<Outcome>& outcomes);

}  // namespace shoal::shmtest
