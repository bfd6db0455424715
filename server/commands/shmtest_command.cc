#include <algorithm>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/terminal.h"
#include "runtime/base/text_values.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/shmtest/min_size.h"
#include "server/shmtest/program.h"
#include "server/shmtest/report.h"
#include "server/shmtest/rows.h"
#include "server/shmtest/runner.h"

namespace shoal {
namespace {

constexpr int kSomeFailed = 1;
constexpr const char* kHostAdded =
    "shmtest: host was added in front as the control (--accept error)\n";

Status write_file(const std::string& path, const std::string& text) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid())
    return Status::error(Code::kInvalidArgument, cat("--junit: open ", path), errno);
  return write_all(file.get(), text, path);
}

shmtest::RunOptions run_options(const ShmtestFlags& flags) {
  shmtest::RunOptions options;
  options.command = flags.command;
  options.timeout_s = flags.timeout_s;
  options.jobs = flags.jobs;
  // Nothing else was asked for, so that nothing has to be set up.
  options.in_place = !flags.min_size && flags.matrix.size() == 1;
  options.trace = !flags.no_trace;
  options.accept = flags.accept;
  options.fail_fast = flags.fail_fast;
  options.pass_output = flags.verbose;
  return options;
}

/// In bytes, a whole number of MiB.
uint64_t half_of_memory() {
  const auto pages = static_cast<uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 1L));
  const uint64_t mebibytes = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) >> 21;
  return std::max<uint64_t>(mebibytes, 1) << 20;
}

/// Says what has ended, as a line on stderr, or, of a search for people, as a row of its table.
Staged<shmtest::RunResult> run_conditions(const ShmtestFlags& flags) {
  size_t ended = 0;
  Status written;
  const bool colour = wants_colour(STDOUT_FILENO);
  const auto show = [&](const shmtest::Outcome& outcome) {
    ++ended;
    if (flags.min_size && !flags.json) {
      if (written.ok()) written = write_stdout(shmtest::search_row(outcome, ended == 1, colour));
      return;
    }
    // A search does not know how many sizes it will try.
    const size_t of = flags.min_size ? 0 : flags.matrix.size();
    const bool colour_of_stderr = wants_colour(STDERR_FILENO);
    (void)write_all(STDERR_FILENO, shmtest::progress_line(outcome, ended, of, colour_of_stderr),
                    "stderr");
  };
  const shmtest::RunOptions options = run_options(flags);
  // The lines of progress count it.
  if (flags.host_added) (void)write_all(STDERR_FILENO, kHostAdded, "stderr");
  // The pages of a tmpfs are the machine's memory, so that a search for more could only end in an
  // OOM kill.
  Result<shmtest::RunResult> run = flags.min_size
                                       ? shmtest::find_min_size(options, half_of_memory(), show)
                                       : shmtest::run_matrix(flags.matrix, options, show);
  if (!written.ok()) return at(Stage::kRequest, written);
  return at(Stage::kStart, std::move(run));
}

std::string report_text(const ShmtestFlags& flags, const shmtest::RunResult& run) {
  if (flags.json) return shmtest::json_report(run, flags.command, SHOAL_VERSION);
  return flags.min_size ? shmtest::search_report(run)
                        : shmtest::table(run, flags.matrix.size(), wants_colour(STDOUT_FILENO));
}

Status keep_junit(const ShmtestFlags& flags, const shmtest::RunResult& run) {
  if (!flags.junit) return {};
  SHOAL_RETURN_IF_ERROR(
      write_file(*flags.junit, shmtest::junit_report(run, flags.command, flags.matrix.size())));
  say_done("shmtest", cat("wrote JUnit's XML: ", printable(*flags.junit)));
  return {};
}

/// 0, or 1 if the command failed in a condition, or a search found no size. 69 if nothing was
/// tested: a CI step must not be green then.
int exit_code_of(const shmtest::RunResult& run) {
  if (run.search.wanted) return run.search.passes != 0 ? 0 : kSomeFailed;
  if (shmtest::nothing_tested(run)) return static_cast<int>(ExitCode::kUnavailable);
  const bool failed = std::any_of(run.outcomes.begin(), run.outcomes.end(),
                                  [](const shmtest::Outcome& outcome) { return outcome.failed(); });
  return failed ? kSomeFailed : 0;
}

}  // namespace

int run_shmtest(const ShmtestFlags& flags) {
  if (flags.list)
    return report_failure(at(Stage::kRequest, write_stdout(shmtest::list_conditions())));
  const Status found = shmtest::find_program(flags.command[0]);
  if (!found.ok()) return report_failure(at(Stage::kRequest, found));
  // Check now, so that an unwritable file is reported before the matrix has run for minutes.
  if (flags.junit) {
    const Status writable = write_file(*flags.junit, "");
    if (!writable.ok()) return report_failure(at(Stage::kRequest, writable));
  }
  const Staged<shmtest::RunResult> run = run_conditions(flags);
  if (!run.ok()) return report_failure(run.error());
  // The file first, because the reader of stdout may stop before the end.
  const Status kept = keep_junit(flags, *run);
  const Status printed = write_stdout(report_text(flags, *run));
  for (const Status& written : {kept, printed})
    if (!written.ok()) return report_failure(at(Stage::kRequest, written));
  if (shmtest::lacks_control(*run)) say_warning(shmtest::kLacksControl);
  if (run->stopped_by != 0) return 128 + run->stopped_by;
  return exit_code_of(*run);
}

}  // namespace shoal
