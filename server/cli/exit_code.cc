#include "server/cli/exit_code.h"

#include <unistd.h>

#include "runtime/base/log.h"

namespace shoal {
namespace {

ExitCode model_exit_code(Code code) {
  switch (code) {
    case Code::kNotFound:
    case Code::kPermissionDenied:
      return ExitCode::kNoModel;
    case Code::kInternal:
      return ExitCode::kInternal;
    default:
      return ExitCode::kBadModel;
  }
}

ExitCode start_exit_code(const Status& status) {
  if (status.code() == Code::kAborted) return ExitCode::kWorkerDied;
  if (is_transport_failure(status)) return ExitCode::kUnavailable;
  switch (status.code()) {
    // MODEL was there when it was opened: what a rank misses or cannot read now is damage.
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

ExitCode run_exit_code(Code code) {
  switch (code) {
    case Code::kAborted:
    case Code::kUnavailable:       // a rank's peer was gone before we saw the death itself
    case Code::kDeadlineExceeded:  // a rank that does not answer is ended like a dead one
      return ExitCode::kWorkerDied;
    case Code::kInvalidArgument:
    case Code::kResourceExhausted:
      return ExitCode::kUsage;
    default:
      return ExitCode::kInternal;
  }
}

}  // namespace

bool is_transport_failure(const Status& status) {
  if (status.ok()) return false;
  const std::string& where = status.causes().back().where;
  for (const std::string_view folder : {"memory/", "device/", "comm/", "transport/"}) {
    if (where.starts_with(folder)) return true;
  }
  return false;
}

ExitCode exit_code(const Status& status, Stage stage) {
  if (status.ok()) return ExitCode::kOk;
  switch (stage) {
    case Stage::kRequest:
      return status.code() == Code::kInternal ? ExitCode::kInternal : ExitCode::kUsage;
    case Stage::kModel:
      return model_exit_code(status.code());
    case Stage::kStart:
      return start_exit_code(status);
    case Stage::kRun:
      return run_exit_code(status.code());
  }
  return ExitCode::kInternal;
}

int report_failure(const Status& status, Stage stage) {
  if (status.ok()) return 0;
  if (log_options().format == LogFormat::kJson) {
    log_error(status.to_string());
  } else {
    const std::string text = cat("shoal: ", status.to_string(), "\n");
    // One write, so that lines of several processes do not mix. Where stderr is gone there is
    // nobody to tell.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  }
  return static_cast<int>(exit_code(status, stage));
}

}  // namespace shoal
