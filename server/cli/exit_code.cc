#include "server/cli/exit_code.h"

#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/log.h"
#include "runtime/base/terminal.h"
#include "server/cli/command_io.h"
#include "server/cli/process_start.h"

namespace shoal {
namespace {

ExitCode model_exit_code(Code code) {
  switch (code) {
    case Code::kNotFound:
    case Code::kPermissionDenied:
      return ExitCode::kNoModel;
    case Code::kInternal:
      return ExitCode::kInternal;
    case Code::kUnavailable:  // no descriptor is left for a file
      return ExitCode::kUnavailable;
    default:
      return ExitCode::kBadModel;
  }
}

ExitCode start_exit_code(Code code, Fault fault) {
  if (code == Code::kAborted) return ExitCode::kWorkerDied;
  if (fault == Fault::kTransport || fault == Fault::kSharedMemory || fault == Fault::kPolicy) {
    return ExitCode::kUnavailable;
  }
  switch (code) {
    // MODEL was there when it was opened, so a file that a rank cannot find or read now means that
    // the model is damaged.
    case Code::kNotFound:
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
    case Code::kUnimplemented:
    case Code::kDataLoss:
      return ExitCode::kBadModel;
    case Code::kFailedPrecondition:
      return ExitCode::kUsage;
    case Code::kUnavailable:
    case Code::kResourceExhausted:
    case Code::kPermissionDenied:
    case Code::kDeadlineExceeded:
      return ExitCode::kUnavailable;
    default:
      return ExitCode::kInternal;
  }
}

ExitCode run_exit_code(Code code, Fault fault) {
  if (fault == Fault::kShortage && code == Code::kResourceExhausted) return ExitCode::kUnavailable;
  switch (code) {
    case Code::kAborted:
    // A rank's peer was gone before we noticed the death itself.
    case Code::kUnavailable:
    // A rank that does not answer is killed, so it counts as dead.
    case Code::kDeadlineExceeded:
      return ExitCode::kWorkerDied;
    case Code::kInvalidArgument:
    case Code::kResourceExhausted:
      return ExitCode::kUsage;
    // A file of the model that cannot be read.
    case Code::kDataLoss:
      return ExitCode::kBadModel;
    default:
      return ExitCode::kInternal;
  }
}

/// Writes the last line of a command, which for a person begins with this label, or with
/// --log-format json a line of the log.
void say(LogLevel level, std::string_view label, std::string_view text, LogFields fields = {}) {
  if (log_options().format == LogFormat::kJson || level < log_options().level) {
    log_line(level, text, fields, kLastLineMs);
    return;
  }
  // If it is lost, there is no other place to report to.
  (void)write_stderr(cat("shoal: ", label, text, "\n"), kLastLineMs);
}

}  // namespace

Ending at(Stage stage, Status status) {
  const Fault fault = status.fault();
  return {std::move(status), stage, fault};
}

ExitCode exit_code(const Ending& ending) {
  if (ending.ok()) return ExitCode::kOk;
  if (ending.fault == Fault::kModelChanged)
    return ExitCode::kWorkerDied;  // the next start may work
  const Code code = ending.why.code();
  switch (ending.stage) {
    case Stage::kRequest:
      if (code == Code::kDataLoss) return ExitCode::kOutput;
      return code == Code::kInternal ? ExitCode::kInternal : ExitCode::kUsage;
    case Stage::kModel:
      return ending.fault == Fault::kShortage ? ExitCode::kUnavailable : model_exit_code(code);
    case Stage::kStart:
      return start_exit_code(code, ending.fault);
    case Stage::kRun:
      return run_exit_code(code, ending.fault);
  }
  return ExitCode::kInternal;
}

bool needs_places(const Ending& ending) {
  const ExitCode code = exit_code(ending);
  return code == ExitCode::kInternal ||
         (code == ExitCode::kWorkerDied && ending.fault != Fault::kModelChanged);
}

int report_failure(const Ending& ending) {
  if (ending.ok()) return 0;
  if (ending.stage == Stage::kRequest && reader_left(ending.why)) end_by_broken_pipe();
  const int code = static_cast<int>(exit_code(ending));
  say_error(needs_places(ending) ? ending.why.to_string() : explained(ending.why), code, &ending);
  return code;
}

void say_error(std::string_view text, int exit_code, const Ending* why) {
  say(LogLevel::kError, painted("error:", Paint::kRed, wants_colour(STDERR_FILENO)) + " ", text,
      {{"event", "error"},
       {"exit_code", exit_code},
       {"code", why != nullptr ? LogValue(code_name(why->why.code())) : LogValue()},
       {"fault", why != nullptr ? LogValue(fault_name(why->fault)) : LogValue()}});
}

void say_warning(std::string_view text) {
  const std::string label = painted("warning:", Paint::kYellow, wants_colour(STDERR_FILENO));
  say(LogLevel::kWarning, label + " ", text);
}

void say_interrupted(size_t come, std::string_view unit) {
  say(LogLevel::kError, "",
      come == 0 ? std::string("interrupted")
                : cat("interrupted after ", counted(come, unit), " of the answer"));
}

}  // namespace shoal
