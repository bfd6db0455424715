#include "server/shmtest/rows.h"

#include <algorithm>

#include "runtime/base/number_text.h"
#include "runtime/base/terminal.h"
#include "runtime/base/text_values.h"
#include "server/shmtest/init.h"

namespace shoal::shmtest {
namespace {

/// Whether the command was too brief for a look at what it took.
bool unseen(const Outcome& outcome) {
  return !outcome.skipped() && ran(outcome) && !outcome.peak_bytes;
}

bool looked_at(const Outcome& outcome) {
  return !outcome.skipped() && ran(outcome) && outcome.peak_bytes;
}

/// Whether a SIGBUS killed a process of which no look saw anything: it may have touched pages
/// between two looks, or none, because there was no room for the first.
bool killed_first(const Outcome& outcome) {
  return looked_at(outcome) && *outcome.peak_bytes == 0 && outcome.sigbus().value_or(false);
}

/// Whether there is a figure of what it took.
bool has_figure(const Outcome& outcome) {
  return looked_at(outcome) && !killed_first(outcome);
}

/// The most that was seen in /dev/shm. Between two looks there may have been more.
std::string peak_text(const Outcome& outcome) {
  if (unseen(outcome)) return "no look";
  if (killed_first(outcome)) return "killed first";
  if (!has_figure(outcome)) return "-";
  return *outcome.peak_bytes == 0 ? "0 B seen" : cat(">= ", human_bytes(*outcome.peak_bytes));
}

std::string end_text(const Outcome& outcome) {
  if (outcome.end == End::kExited) return cat(outcome.exit_code);
  if (outcome.end == End::kSignalled) return signal_name(outcome.signal);
  return outcome.end == End::kHung ? "hang" : "-";
}

std::string shown_verdict(const Outcome& outcome, bool colour) {
  const Paint paint = outcome.skipped()  ? Paint::kYellow
                      : outcome.passed() ? Paint::kGreen
                                         : Paint::kRed;
  return painted(verdict(outcome), paint, colour);
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

/// The last line of the output that is not blank, in quotes. Most programs end with the error that
/// they failed of.
std::string last_line(const Outcome& outcome) {
  std::string_view text = outcome.output_tail;
  const size_t last = text.find_last_not_of(" \t\r\n");
  if (last == std::string_view::npos) return "";
  text = text.substr(0, last + 1);
  const size_t begin = text.find_last_of('\n');
  if (begin != std::string_view::npos) text.remove_prefix(begin + 1);
  text.remove_prefix(text.find_first_not_of(" \t"));
  return shown(text);
}

/// Why the row says what it says, with the end of the output, unless that followed from a SIGBUS.
std::string row_reason(const Outcome& outcome) {
  const std::string reason = reason_text(outcome);
  const bool told = reason.empty() || outcome.skipped() || outcome.sigbus().value_or(false);
  const std::string line = told ? "" : last_line(outcome);
  return cat(reason, line.empty() ? "" : "; last line: ", line);
}

/// peak: the column of what was seen in /dev/shm, or nothing.
std::string heading_with(size_t width, const char* peak) {
  return cat(padded("condition", width + 2), "result  seconds  exit     ", peak, "reason\n");
}

std::string row_with(const Outcome& outcome, size_t width, const std::string& peak, bool colour) {
  const std::string reason = row_reason(outcome);
  // A colour has no width, and every verdict has 4 letters.
  return cat(padded(outcome.condition, width + 2), shown_verdict(outcome, colour), "    ",
             padded(with_decimals(outcome.seconds, 2), 9), padded(end_text(outcome), 9), peak,
             reason.empty() ? "-" : reason, "\n");
}

}  // namespace

const char* verdict(const Outcome& outcome) {
  return outcome.skipped() ? "skip" : outcome.passed() ? "pass" : "FAIL";
}

bool ran(const Outcome& outcome) {
  return outcome.end == End::kExited || outcome.end == End::kSignalled || outcome.end == End::kHung;
}

std::string reason_text(const Outcome& outcome) {
  const bool refused = outcome.control() && outcome.accept == Accept::kError &&
                       outcome.end == End::kExited && outcome.exit_code != 0;
  return cat(printable(outcome.reason()),
             refused ? "; host must exit with 0 even with --accept error" : "");
}

std::string progress_line(const Outcome& outcome, size_t number, size_t of, bool colour) {
  const std::string reason = reason_text(outcome);
  const std::string digits = cat(number);
  const size_t width = of == 0 ? 2 : cat(of).size();
  return cat("shmtest: [", std::string(width - std::min(width, digits.size()), ' '), digits,
             of == 0 ? std::string() : cat("/", of), "] ", padded(outcome.condition, 16), " ",
             shown_verdict(outcome, colour), "  ", with_decimals(outcome.seconds, 2), " s",
             reason.empty() ? "" : "  ", reason, "\n");
}

std::string search_row(const Outcome& outcome, bool first, bool colour) {
  return cat(first ? heading_with(kLeastWidth, "") : "",
             row_with(outcome, kLeastWidth, "", colour));
}

std::string table_heading(size_t width) {
  return heading_with(width, "shm seen      ");
}

std::string table_row(const Outcome& outcome, size_t width, bool colour) {
  return row_with(outcome, width, padded(peak_text(outcome), 14), colour);
}

std::string looks_text(const std::vector<Outcome>& outcomes) {
  const auto interval = kSampleInterval.count();
  std::string text;
  if (std::any_of(outcomes.begin(), outcomes.end(), has_figure))
    text += cat("shm seen: sampled every ", interval, " ms; a short peak may be higher.\n");
  if (std::any_of(outcomes.begin(), outcomes.end(), unseen))
    text += cat("no look: it ended before the first look (", interval,
                " ms), too soon to see what it took.\n");
  if (std::any_of(outcomes.begin(), outcomes.end(), killed_first))
    text += "killed first: a SIGBUS killed a process, and no look had seen anything of it.\n";
  return text;
}

}  // namespace shoal::shmtest
