#include "server/shmtest/report.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>

#include "runtime/base/counted.h"
#include "runtime/base/json.h"
#include "runtime/base/number_text.h"
#include "runtime/base/quantity.h"
#include "runtime/base/text_values.h"
#include "server/shmtest/init.h"
#include "server/shmtest/min_size.h"
#include "server/shmtest/rows.h"
#include "server/shmtest/xml.h"

namespace shoal::shmtest {
namespace {

/// The layout of json_report().
constexpr int kSchema = 2;

const char* end_name(End end) {
  switch (end) {
    case End::kBroken:
      return "broken";
    case End::kForbidden:
      return "forbidden";
    case End::kSkipped:
      return "skipped";
    case End::kNotStarted:
      return "not-started";
    case End::kExited:
      return "exited";
    case End::kSignalled:
      return "signalled";
    case End::kHung:
      return "hung";
  }
  return "broken";
}

size_t count(const std::vector<Outcome>& outcomes, std::string_view wanted) {
  return static_cast<size_t>(
      std::count_if(outcomes.begin(), outcomes.end(),
                    [&](const Outcome& outcome) { return verdict(outcome) == wanted; }));
}

/// Whoever gives a server as the command reads it here that shmtest waits for its end.
constexpr const char* kMustEnd =
    "the command must end by itself: start the server, ask it, stop it\n";

/// What is known about a failure beyond its row in the table.
std::string failure_text(const Outcome& outcome) {
  std::string text = cat(reason_text(outcome), "\n");
  for (const LeftFile& file : outcome.left)
    text += cat("left in /dev/shm: ", printable(file.name), ", ",
                bytes_text(static_cast<int64_t>(file.bytes)), "\n");
  const bool hung = outcome.end == End::kHung;
  for (const std::string& process : outcome.orphans)
    text += cat(hung ? "running: " : "outlived it: ", printable(process_text(process)), "\n");
  if (hung) text += kMustEnd;
  if (outcome.output_tail.empty()) return text + "no output\n";
  text += cat("the end of its output:\n", outcome.output_tail);
  if (text.back() != '\n') text += '\n';
  return text;
}

std::string failure_part(const Outcome& outcome) {
  return cat("--- ", outcome.condition, ": ", failure_text(outcome), "\n");
}

const char* trace_name(Trace trace) {
  switch (trace) {
    case Trace::kOff:
      return "off";
    case Trace::kEnded:
      return "ended";
    case Trace::kComplete:
      return "complete";
  }
  return "off";
}

Json json_of(const Outcome& outcome) {
  Json left = Json::array();
  for (const LeftFile& file : outcome.left)
    left.push_back({{"name", file.name}, {"bytes", file.bytes}});
  const bool exited = outcome.end == End::kExited, signalled = outcome.end == End::kSignalled;
  const bool looked = ran(outcome) && outcome.peak_bytes;
  return {{"condition", outcome.condition},
          {"result", outcome.skipped()  ? "skipped"
                     : outcome.passed() ? "passed"
                                        : "failed"},
          {"end", end_name(outcome.end)},
          {"exit_code", exited ? Json(outcome.exit_code) : Json()},
          {"signal", signalled ? Json(signal_name(outcome.signal)) : Json()},
          {"sigbus", outcome.sigbus() ? Json(*outcome.sigbus()) : Json()},
          {"sigbus_process", text_or_null(outcome.sigbus_process)},
          {"trace", trace_name(outcome.trace)},
          {"trace_note", text_or_null(outcome.trace_note)},
          {"seconds", outcome.seconds},
          {"shm_peak_bytes", looked ? Json(*outcome.peak_bytes) : Json()},
          {"left", left},
          {"orphans", outcome.orphans},
          {"oom_kills", outcome.oom_kills},
          {"reason", text_or_null(outcome.reason())},
          {"output_tail", text_or_null(outcome.output_tail)}};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += cat(text.empty() ? "" : " ", word);
  return text;
}

bool died_of_sigbus(const Outcome& outcome) {
  return outcome.failed() && outcome.sigbus().value_or(false);
}

constexpr const char* kSigbusMeans =
    "SIGBUS: mostly, a process touched a page for which /dev/shm had no room; posix_fallocate() "
    "reserves the pages first, and fails with ENOSPC instead.";
constexpr const char* kSearchSize = " shmtest --min-size finds how much room is enough.";

/// What a SIGBUS means, below a table that has one. That of a search need not name the search.
std::string sigbus_text(const std::vector<Outcome>& outcomes, const char* more) {
  const bool any = std::any_of(outcomes.begin(), outcomes.end(), died_of_sigbus);
  return any ? cat(kSigbusMeans, more, "\n") : "";
}

/// In which conditions a SIGBUS may have been missed, and why.
std::string trace_text(const std::vector<Outcome>& outcomes) {
  std::map<std::string, std::string> conditions;  // of each note
  for (const Outcome& outcome : outcomes) {
    if (outcome.trace_note.empty()) continue;
    std::string& names = conditions[outcome.trace_note];
    names += cat(names.empty() ? "" : ", ", outcome.condition);
  }
  std::string text;
  for (const auto& [note, names] : conditions)
    text += cat("A SIGBUS that leaves no sign is not seen in ", names, ": ", note, "\n");
  return text;
}

std::string search_text(const RunResult& run) {
  const auto [wanted, passes, fails] = run.search;
  if (run.control_failed) return "The control (host) failed, so no size was tried.\n";
  const bool stopped = run.stopped_by != 0;
  std::string text = stopped ? "The search was stopped before its end. " : "";
  if (passes == 0 && fails == 0) return text + "No size was tried to its end.\n";
  if (passes == 0) return cat(text, "It passes in no size up to ", size_name(fails), ".\n");
  text += cat("The smallest /dev/shm that passed here: ", size_name(passes), " (",
              human_bytes(passes), ")");
  if (fails == 0) return text + "; no size failed.\n";
  text += cat("; it failed in ", size_name(fails), ".");
  if (stopped) return text + "\n";
  return cat(text, " The search is exact to 1/", kSearchParts,
             " of the size, or a page. A need that varies gives another figure, so leave room: "
             "--shm-size=",
             size_name(std::bit_ceil(passes + passes / 4)), "\n");
}

/// How many conditions were not run, and why. Empty if all were.
std::string not_run_text(const RunResult& run, size_t conditions) {
  const size_t others = conditions - run.outcomes.size();
  if (others == 0) return "";
  const std::string why =
      run.control_failed ? "The control (host) failed, so nothing can be concluded about /dev/shm"
      : run.stopped_by != 0 ? cat(signal_name(run.stopped_by), " stopped the run")
                            : "The first failure ended the run (--fail-fast)";
  return cat(why, ": ", counted(others, "other condition"), others == 1 ? " was" : " were",
             " not run.\n");
}

bool took_some(const Outcome& outcome) {
  return outcome.peak_bytes.value_or(0) > 0 || !outcome.left.empty() ||
         outcome.sigbus().value_or(false);
}

/// A green report of a command that took nothing proves little, so that it must not look as if it
/// proved much.
std::string no_use_text(const RunResult& run) {
  const std::vector<Outcome>& outcomes = run.outcomes;
  if (run.stopped_by != 0 || nothing_tested(run) || count(outcomes, "FAIL") != 0 ||
      std::any_of(outcomes.begin(), outcomes.end(), took_some))
    return "";
  return cat(
      "No use of /dev/shm was seen in any condition: the command needs none, or found none that it "
      "could use, or its use was too short to be looked at (every ",
      kSampleInterval.count(), " ms).\n");
}

std::string junit_property(std::string_view name, const std::string& value) {
  return cat("<property name=\"", name, "\" value=\"", xml_escape(value), "\"/>");
}

/// more: what belongs to a failure besides.
std::string junit_case(const Outcome& outcome, const std::string& class_name,
                       const std::string& more) {
  const std::optional<bool> sigbus = outcome.sigbus();
  std::string text = cat(
      "<testcase classname=\"", class_name, "\" name=\"", xml_escape(outcome.condition),
      "\" time=\"", with_decimals(outcome.seconds, 2), "\"><properties>",
      junit_property("shm_peak_bytes", outcome.peak_bytes ? cat(*outcome.peak_bytes) : "unknown"),
      junit_property("sigbus", !sigbus   ? "unknown"
                               : *sigbus ? "true"
                                         : "false"));
  if (!outcome.trace_note.empty()) text += junit_property("trace_note", outcome.trace_note);
  text += "</properties>";
  if (outcome.skipped()) {
    text += cat("<skipped message=\"", xml_escape(outcome.reason()), "\"/>");
  } else if (!outcome.passed()) {
    text += cat("<failure type=\"", end_name(outcome.end), "\" message=\"",
                xml_escape(reason_text(outcome)), "\">", xml_escape(failure_text(outcome)),
                sigbus_text({outcome}, kSearchSize), more, "</failure>");
  }
  if (!outcome.output_tail.empty())
    text += cat("<system-out>", xml_escape(outcome.output_tail), "</system-out>");
  return text + "</testcase>\n";
}

}  // namespace

std::string search_report(const RunResult& run) {
  std::string text;
  for (const Outcome& outcome : run.outcomes) {
    // It is expected to fail in sizes that are too small, so that one of them is enough.
    const bool told = run.search.fails == 0 || outcome.condition == size_name(run.search.fails);
    if (outcome.failed() && told) text += cat("\n", failure_part(outcome));
  }
  return text + sigbus_text(run.outcomes, "") + trace_text(run.outcomes) + search_text(run);
}

std::string table(const RunResult& run, size_t conditions, bool colour) {
  const std::vector<Outcome>& outcomes = run.outcomes;
  std::string text;
  size_t width = kLeastWidth;
  for (const Outcome& outcome : outcomes) {
    if (outcome.failed()) text += failure_part(outcome);
    width = std::max(width, outcome.condition.size());
  }
  text += table_heading(width);
  for (const Outcome& outcome : outcomes) text += table_row(outcome, width, colour);
  text += looks_text(outcomes) + sigbus_text(outcomes, kSearchSize) + trace_text(outcomes);
  text += cat(count(outcomes, "pass"), " passed, ", count(outcomes, "FAIL"), " failed, ",
              count(outcomes, "skip"), " skipped\n");
  text += not_run_text(run, conditions) + no_use_text(run);
  if (nothing_tested(run))
    text += cat("Nothing was tested, because ",
                count(outcomes, "pass") == 0 ? "every condition" : "the control (host)",
                " was skipped: exit code 69.\n");
  return text;
}

bool nothing_tested(const RunResult& run) {
  if (run.stopped_by != 0 || count(run.outcomes, "FAIL") != 0) return false;
  const auto is_lost_control = [](const Outcome& outcome) {
    return outcome.control() && outcome.skipped();
  };
  return count(run.outcomes, "pass") == 0 ||
         std::any_of(run.outcomes.begin(), run.outcomes.end(), is_lost_control);
}

bool never_worked(const RunResult& run) {
  const auto is_well = [](const Outcome& outcome) {
    return outcome.end == End::kExited && outcome.exit_code == 0;
  };
  return std::any_of(run.outcomes.begin(), run.outcomes.end(), ran) &&
         std::none_of(run.outcomes.begin(), run.outcomes.end(), is_well);
}

bool lacks_control(const RunResult& run) {
  return never_worked(run) &&
         std::none_of(run.outcomes.begin(), run.outcomes.end(), std::mem_fn(&Outcome::control));
}

std::string json_report(const RunResult& run, const std::vector<std::string>& command,
                        const std::string& version) {
  const std::vector<Outcome>& outcomes = run.outcomes;
  Json conditions = Json::array();
  for (const Outcome& outcome : outcomes) conditions.push_back(json_of(outcome));
  const auto size_or_null = [](uint64_t bytes) { return bytes == 0 ? Json() : Json(bytes); };
  const Json report = {{"schema", kSchema},
                       {"version", version},
                       {"command", command},
                       {"control_failed", run.control_failed},
                       {"never_worked", never_worked(run)},
                       {"passed", count(outcomes, "pass")},
                       {"failed", count(outcomes, "FAIL")},
                       {"skipped", count(outcomes, "skip")},
                       {"conditions", std::move(conditions)},
                       {"min_size_bytes", size_or_null(run.search.passes)},
                       {"largest_failing_bytes", size_or_null(run.search.fails)}};
  // Output and file names need not be valid UTF-8.
  return json_text(report, 2) + "\n";
}

std::string junit_report(const RunResult& run, const std::vector<std::string>& command,
                         size_t conditions) {
  const std::vector<Outcome>& outcomes = run.outcomes;
  // Two programs must not look like one in a CI's list of tests.
  const std::string_view program = command[0];
  const std::string class_name =
      cat("shmtest.", xml_escape(program.substr(program.find_last_of('/') + 1)));
  double seconds = 0;
  for (const Outcome& outcome : outcomes) seconds += outcome.seconds;
  std::string text =
      cat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"shmtest ",
          xml_escape(joined(command)), "\" tests=\"", outcomes.size(), "\" failures=\"",
          count(outcomes, "FAIL"), "\" errors=\"0\" skipped=\"", count(outcomes, "skip"),
          "\" time=\"", with_decimals(seconds, 2), "\">\n");
  if (lacks_control(run))
    text += cat("<properties>", junit_property("warning", std::string(kLacksControl)),
                "</properties>\n");
  // A list of one failed test would look as if there were no others.
  const std::string more = not_run_text(run, conditions);
  for (const Outcome& outcome : outcomes) text += junit_case(outcome, class_name, more);
  return text + "</testsuite>\n</testsuites>\n";
}

}  // namespace shoal::shmtest
