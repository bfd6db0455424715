#include "server/shmtest/report.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "runtime/base/json.h"
#include "runtime/base/number_text.h"

namespace shoal::shmtest {
namespace {

const char* verdict(const Outcome& outcome) {
  return outcome.skipped() ? "skip" : outcome.passed() ? "pass" : "FAIL";
}

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

std::string end_text(const Outcome& outcome) {
  if (outcome.end == End::kExited) return cat(outcome.exit_code);
  if (outcome.end == End::kSignalled) return signal_name(outcome.signal);
  return outcome.end == End::kHung ? "hang" : "-";
}

size_t count(const std::vector<Outcome>& outcomes, std::string_view wanted) {
  return static_cast<size_t>(
      std::count_if(outcomes.begin(), outcomes.end(),
                    [&](const Outcome& outcome) { return verdict(outcome) == wanted; }));
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

uint64_t left_bytes(const Outcome& outcome) {
  uint64_t bytes = 0;
  for (const LeftFile& file : outcome.left) bytes += file.bytes;
  return bytes;
}

/// What is known about a failure beyond its row in the table.
std::string failure_text(const Outcome& outcome) {
  std::string text = cat(outcome.reason(), "\n");
  for (const LeftFile& file : outcome.left)
    text += cat("left in /dev/shm: ", file.name, " (", file.bytes, " bytes)\n");
  for (const std::string& process : outcome.orphans) {
    text += cat(outcome.end == End::kHung ? "running: " : "outlived it: ", process, "\n");
  }
  if (outcome.output_tail.empty()) return text + "no output\n";
  text += cat("the end of its output:\n", outcome.output_tail);
  if (text.back() != '\n') text += '\n';
  return text;
}

Json json_of(const Outcome& outcome) {
  Json left = Json::array();
  for (const LeftFile& file : outcome.left)
    left.push_back({{"name", file.name}, {"bytes", file.bytes}});
  const bool exited = outcome.end == End::kExited, signalled = outcome.end == End::kSignalled;
  return {{"condition", outcome.condition},
          {"result", outcome.skipped()  ? "skipped"
                     : outcome.passed() ? "passed"
                                        : "failed"},
          {"end", end_name(outcome.end)},
          {"exit_code", exited ? Json(outcome.exit_code) : Json()},
          {"signal", signalled ? Json(signal_name(outcome.signal)) : Json()},
          {"sigbus", outcome.sigbus()},
          {"seconds", outcome.seconds},
          {"shm_peak_bytes", outcome.peak_bytes},
          {"left", left},
          {"orphans", outcome.orphans},
          {"oom_kills", outcome.oom_kills},
          {"reason", outcome.reason()},
          {"output_tail", outcome.output_tail}};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += cat(text.empty() ? "" : " ", word);
  return text;
}

/// Length in bytes of the UTF-8 character at the start of text, if XML may contain it; otherwise 0.
size_t xml_character(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : 0);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  uint32_t code = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least[length] || surrogate || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF
             ? 0
             : length;
}

}  // namespace

std::string progress_line(const Outcome& outcome, size_t number, size_t of) {
  const std::string reason = outcome.reason();
  return cat("shmtest: [", number, "/", of, "] ", padded(outcome.condition, 16), " ",
             verdict(outcome), "  ", with_decimals(outcome.seconds, 2), " s",
             reason.empty() ? "" : "  ", reason, "\n");
}

std::string table(const std::vector<Outcome>& outcomes) {
  size_t width = 10;
  for (const Outcome& outcome : outcomes) width = std::max(width, outcome.condition.size());
  std::string text =
      cat(padded("condition", width + 2), "result  seconds  exit     shm peak    left behind\n");
  for (const Outcome& outcome : outcomes) {
    std::string left = outcome.left.empty()
                           ? "-"
                           : cat(outcome.left.size(), " (", human_bytes(left_bytes(outcome)), ")");
    if (!outcome.orphans.empty() && outcome.end != End::kHung)
      left += cat(", ", outcome.orphans.size(), " processes");
    text += cat(padded(outcome.condition, width + 2), padded(verdict(outcome), 8),
                padded(with_decimals(outcome.seconds, 2), 9), padded(end_text(outcome), 9),
                padded(outcome.skipped() ? "-" : human_bytes(outcome.peak_bytes), 12), left,
                outcome.sigbus() ? "  SIGBUS" : "", "\n");
  }
  text += cat(count(outcomes, "pass"), " passed, ", count(outcomes, "FAIL"), " failed, ",
              count(outcomes, "skip"), " skipped\n");
  for (const Outcome& outcome : outcomes) {
    if (outcome.passed()) continue;
    text +=
        cat("\n--- ", outcome.condition, ": ",
            outcome.skipped() ? cat("skipped: ", outcome.reason(), "\n") : failure_text(outcome));
  }
  return text;
}

std::string json_report(const std::vector<Outcome>& outcomes,
                        const std::vector<std::string>& command) {
  Json conditions = Json::array();
  for (const Outcome& outcome : outcomes) conditions.push_back(json_of(outcome));
  const Json report = {{"command", command},
                       {"passed", count(outcomes, "pass")},
                       {"failed", count(outcomes, "FAIL")},
                       {"skipped", count(outcomes, "skip")},
                       {"conditions", std::move(conditions)}};
  // Output and file names need not be valid UTF-8.
  return json_text(report, 2) + "\n";
}

std::string junit_report(const std::vector<Outcome>& outcomes,
                         const std::vector<std::string>& command) {
  double seconds = 0;
  for (const Outcome& outcome : outcomes) seconds += outcome.seconds;
  std::string text =
      cat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"shmtest ",
          xml_escape(joined(command)), "\" tests=\"", outcomes.size(), "\" failures=\"",
          count(outcomes, "FAIL"), "\" errors=\"0\" skipped=\"", count(outcomes, "skip"),
          "\" time=\"", with_decimals(seconds, 2), "\">\n");
  for (const Outcome& outcome : outcomes) {
    text += cat("<testcase classname=\"shmtest\" name=\"", xml_escape(outcome.condition),
                "\" time=\"", with_decimals(outcome.seconds, 2), "\">");
    if (outcome.skipped()) {
      text += cat("<skipped message=\"", xml_escape(outcome.reason()), "\"/>");
    } else if (!outcome.passed()) {
      text +=
          cat("<failure type=\"", end_name(outcome.end), "\" message=\"",
              xml_escape(outcome.reason()), "\">", xml_escape(failure_text(outcome)), "</failure>");
    }
    text += "</testcase>\n";
  }
  return text + "</testsuite>\n</testsuites>\n";
}

std::string xml_escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = xml_character(text);
    const std::string_view character = text.substr(0, std::max<size_t>(1, length));
    text.remove_prefix(character.size());
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (character == "&") {
      out += "&amp;";
    } else if (character == "<") {
      out += "&lt;";
    } else if (character == ">") {
      out += "&gt;";
    } else if (character == "\"") {
      out += "&quot;";
    } else if (character == "'") {
      out += "&apos;";
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace shoal::shmtest
