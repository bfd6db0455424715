#include "server/cli/shmtest_flags.h"

#include "runtime/base/text_values.h"

namespace shoal {
namespace {

constexpr double kMaxTimeoutSeconds = 1e6;
constexpr int64_t kMaxJobs = 256;

Status set_timeout(std::string_view flag, std::string_view text, double* target) {
  SHOAL_ASSIGN_OR_RETURN(*target, parse_number_flag(flag, text));
  if (*target > 0 && *target <= kMaxTimeoutSeconds) return {};
  return Status::error(Code::kInvalidArgument, cat(flag, " must be seconds in (0, ",
                                                   kMaxTimeoutSeconds, "], not ", shown(text)));
}

}  // namespace

void add_shmtest_flags(FlagParser& parser, ShmtestFlags* flags) {
  flags->matrix = shmtest::parse_matrix("basic").value();
  parser.group("Matrix");
  parser.add_value("--matrix", "NAMES", "Conditions, e.g. 4k,no-*,1m+no-cma; basic or all (basic)",
                   [=](std::string_view, std::string_view text) -> Status {
                     SHOAL_ASSIGN_OR_RETURN(flags->matrix, shmtest::parse_matrix(text));
                     return {};
                   });
  parser.add_switch("--list", "Print the conditions, and do nothing", &flags->list);
  parser.add_value("--timeout", "S",
                   "Seconds after which a condition counts as a hang and is killed (60)",
                   [=](std::string_view flag, std::string_view text) {
                     return set_timeout(flag, text, &flags->timeout_s);
                   });
  parser.add_value("--jobs", "N", "Conditions at the same time (1)",
                   [=](std::string_view flag, std::string_view text) -> Status {
                     SHOAL_ASSIGN_OR_RETURN(const int64_t jobs,
                                            parse_int_flag(flag, text, 1, kMaxJobs));
                     flags->jobs = static_cast<int>(jobs);
                     return {};
                   });
  parser.add_switch("--keep-going", "Go on after a failure (the default)", &flags->keep_going);
  parser.add_switch("--fail-fast", "Start no condition after the first that fails",
                    &flags->fail_fast);
  parser.group("Report");
  parser.add_switch("--json", "Print one JSON document instead of the table", &flags->json);
  parser.add_value("--junit", path("FILE"), "Write a JUnit XML file too",
                   [=](std::string_view, std::string_view text) -> Status {
                     flags->junit = std::string(text);
                     return {};
                   });
  parser.add_switch("--verbose", "The command's output to stderr as it comes", &flags->verbose);
}

Status check_shmtest_flags(const ShmtestFlags& flags) {
  if (flags.keep_going && flags.fail_fast) {
    return Status::error(Code::kInvalidArgument, "shmtest takes one of --keep-going, --fail-fast");
  }
  if (!flags.list && (flags.command.empty() || flags.command[0].empty())) {
    return Status::error(Code::kInvalidArgument,
                         "shmtest needs a command after --: shoal shmtest -- COMMAND ...");
  }
  return {};
}

}  // namespace shoal
