#include <fcntl.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "server/cli/command_io.h"
#include "server/cli/exit_code.h"
#include "server/commands/commands.h"
#include "server/shmtest/report.h"
#include "server/shmtest/runner.h"

namespace shoal {
namespace {

constexpr int kSomeFailed = 1;

constexpr const char* kRemedy =
    "shmtest needs mount and process namespaces: run it as root, or allow user namespaces (sysctl "
    "kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0, "
    "kernel.apparmor_restrict_unprivileged_userns=0); "
    "in Docker add --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined";

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
  options.fail_fast = flags.fail_fast;
  options.pass_output = flags.verbose;
  return options;
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
  size_t ended = 0;
  const auto show = [&](const shmtest::Outcome& outcome) {
    (void)write_all(STDERR_FILENO, shmtest::progress_line(outcome, ++ended, flags.matrix.size()),
                    "stderr");
  };
  const Result<shmtest::RunResult> run =
      shmtest::run_matrix(flags.matrix, run_options(flags), show);
  if (!run.ok()) {
    const bool forbidden = run.status().code() == Code::kPermissionDenied;
    return report_failure(
        at(Stage::kStart,
           forbidden ? run.status().because_of(Code::kUnavailable, kRemedy) : run.status()));
  }
  const std::vector<shmtest::Outcome>& outcomes = run->outcomes;
  Status written = write_stdout(flags.json ? shmtest::json_report(outcomes, flags.command)
                                           : shmtest::table(outcomes));
  if (written.ok() && flags.junit)
    written = write_file(*flags.junit, shmtest::junit_report(outcomes, flags.command));
  if (!written.ok()) return report_failure(at(Stage::kRequest, written));
  if (run->stopped_by != 0) return 128 + run->stopped_by;
  for (const shmtest::Outcome& outcome : outcomes) {
    if (!outcome.passed() && !outcome.skipped()) return kSomeFailed;
  }
  return 0;
}

}  // namespace shoal
