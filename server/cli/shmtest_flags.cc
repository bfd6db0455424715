#include "server/cli/shmtest_flags.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/shell_word.h"
#include "runtime/base/text_values.h"
#include "server/cli/flag_setters.h"
#include "server/cli/shared_flags.h"
#include "server/shmtest/min_size.h"

namespace shoal {
namespace {

constexpr int64_t kMaxTimeoutSeconds = 1'000'000;
constexpr int64_t kMaxJobs = 256;

Status set_timeout(std::string_view flag, std::string_view text, double* target) {
  SHOAL_ASSIGN_OR_RETURN(*target, parse_number_flag(flag, text));
  if (*target > 0 && *target <= kMaxTimeoutSeconds) return {};
  return Status::error(Code::kInvalidArgument, cat(flag, " must be seconds in (0, ",
                                                   kMaxTimeoutSeconds, "], not ", shown(text)));
}

Status set_accept(std::string_view flag, std::string_view text, shmtest::Accept* target) {
  SHOAL_ASSIGN_OR_RETURN(const std::string word,
                         parse_choice_flag(flag, text, {"success", "error"}));
  *target = word == "error" ? shmtest::Accept::kError : shmtest::Accept::kSuccess;
  return {};
}

void add_report_flags(FlagParser& parser, ShmtestFlags* flags) {
  parser.group("Report");
  parser.add_switch("--json", "Print one JSON document instead of the table", &flags->json);
  parser.add_value("--junit", path("FILE"), "Write a JUnit XML file too",
                   [=](std::string_view, std::string_view text) -> Status {
                     flags->junit = std::string(text);
                     return {};
                   });
  parser.add_switch("--verbose", "The command's output to stderr as it comes", &flags->verbose);
}

void add_shmtest_flags(FlagParser& parser, ShmtestFlags* flags) {
  flags->matrix = shmtest::parse_matrix("basic").value();
  parser.group("Matrix");
  parser.add_value(
      "--matrix", "NAMES",
      "Conditions of --list, e.g. 4k,128m,no-*,1m+no-cma: * stands for any letters, and "
      "+ joins several into one; basic or all (basic)",
      [=](std::string_view, std::string_view text) -> Status {
        SHOAL_ASSIGN_OR_RETURN(flags->matrix, shmtest::parse_matrix(text));
        flags->matrix_given = true;
        return {};
      });
  parser.add_switch("--min-size",
                    cat("Find the smallest /dev/shm that is enough, by bisection, to 1/",
                        shmtest::kSearchParts, " of it"),
                    &flags->min_size);
  parser.add_switch("--list", "Print the conditions, and do nothing", &flags->list);
  parser.add_value("--timeout", "S",
                   "Seconds after which a condition counts as a hang and is killed (60)",
                   {[=](std::string_view flag, std::string_view text) {
                      return set_timeout(flag, text, &flags->timeout_s);
                    },
                    show(&flags->timeout_s)});
  parser.add_value("--jobs", "N", "Conditions at the same time (1)",
                   whole(&flags->jobs, 1, kMaxJobs));
  parser.add_value("--accept", "success|error",
                   "success: 0 alone; error: any exit code, but host, which is added, must give 0; "
                   "signals, hangs and leaks fail (success)",
                   [=](std::string_view flag, std::string_view text) {
                     return set_accept(flag, text, &flags->accept);
                   });
  parser.add_switch(
      "--no-trace",
      "Do not trace the command (ptrace); a SIGBUS in a process of it may then be missed",
      &flags->no_trace);
  parser.add_switch("--keep-going", "Go on after a failure (the default)", &flags->keep_going);
  parser.add_switch("--fail-fast", "Start no condition after the first that fails",
                    &flags->fail_fast);
  add_report_flags(parser, flags);
}

Status check_shmtest_flags(const ShmtestFlags& flags) {
  if (flags.keep_going && flags.fail_fast) {
    return Status::error(Code::kInvalidArgument, "shmtest takes one of --keep-going, --fail-fast");
  }
  if (flags.min_size && (flags.matrix_given || flags.junit || flags.fail_fast ||
                         flags.accept == shmtest::Accept::kError)) {
    return Status::error(Code::kInvalidArgument,
                         "shmtest --min-size chooses its conditions itself and looks for exit code "
                         "0: it takes no --matrix, --junit, --fail-fast or --accept error");
  }
  if (!flags.list && (flags.command.empty() || flags.command[0].empty())) {
    return Status::error(
        Code::kInvalidArgument,
        cat("shmtest needs a command after --: ", as_typed("shmtest"), " -- COMMAND ..."));
  }
  return {};
}

/// Where errors are accepted, only the control shows that the command works at all.
void add_control(ShmtestFlags& flags) {
  std::vector<shmtest::Condition>& matrix = flags.matrix;
  flags.host_added =
      std::none_of(matrix.begin(), matrix.end(), std::mem_fn(&shmtest::Condition::control));
  if (flags.host_added) matrix.insert(matrix.begin(), shmtest::parse_condition("host").value());
}

/// What to type if the command begins with this word, which stands among `words` without a "--".
std::string with_separator(const std::string& word, Words words) {
  constexpr size_t kMostBytes = 300;
  const std::string start = cat("-- is missing before the command: ", as_typed("shmtest"));
  const std::string form = cat(start, " [FLAGS] -- ", word.substr(0, 80), " ...");
  const auto first = std::find(words.begin(), words.end(), word);
  // The first of several may be the value of a flag.
  const bool known = first == words.begin() || std::count(words.begin(), words.end(), word) == 1;
  if (!known || std::find(words.begin(), words.end(), "--") != words.end()) return form;
  std::string line = start;
  for (auto at = words.begin(); at != words.end(); ++at) {
    if (printable(*at) != *at) return form;  // a line of text cannot show it
    line += cat(at == first ? " -- " : " ", shell_word(*at));
  }
  return line.size() <= kMostBytes ? line : form;
}

}  // namespace

Result<CommandLine> parse_shmtest(Words words, LogOptions log, const Environment&) {
  // The words after "--" belong to another program.
  const auto separator = std::find(words.begin(), words.end(), "--");
  ShmtestFlags flags;
  if (separator != words.end()) flags.command.assign(separator + 1, words.end());
  FlagParser parser(
      "shmtest",
      "Run a command under a matrix of /dev/shm conditions.\n"
      "A condition passes if the command exits with 0, and leaves no process and no name in "
      "/dev/shm. The command must end by itself: start the server, ask it, stop it. It finds the "
      "condition's name in SHOAL_SHMTEST_CONDITION.\n"
      "Exit codes: 0 none fails; 1 some fail; 64 wrong flag or no such command; 69 nothing was "
      "tested (no namespaces here, or all is skipped).");
  add_shmtest_flags(parser, &flags);
  parser.explain_stray_words(
      [words](const std::string& word) { return with_separator(word, words); });
  add_log_flags(parser, &log);
  return finish(parser, {words.begin(), separator}, log, flags, [&] {
    if (flags.accept == shmtest::Accept::kError) add_control(flags);
    return check_shmtest_flags(flags);
  });
}

}  // namespace shoal
