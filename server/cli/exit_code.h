#pragma once
#include <cstddef>
#include <string_view>
#include <utility>

#include "runtime/base/failure.h"
#include "runtime/base/status.h"

namespace shoal {

/// The program's exit codes. The numbers are those of sysexits.h, and they are stable.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,        ///< wrong flag or request, or an input or output file that cannot be opened
  kBadModel = 65,     ///< the model is damaged or unsupported
  kNoModel = 66,      ///< model not found
  kUnavailable = 69,  ///< no transport works, or the port is busy
  kInternal = 70,     ///< internal error: a bug in Shoal, or a processor that computes wrongly
  kOutput = 74,       ///< output cannot be written
  kWorkerDied = 75,   ///< a rank died, or the model was changed in place: a new start may work
};

/// One line of the list of exit codes that --help and the man page show.
struct ExitEntry {
  int code;
  const char* meaning;
};

inline constexpr ExitEntry kExitEntries[] = {
    {0, "done"},
    {1,
     "doctor: a slower transport would be used, or nccl-shm does not fit (with --nccl-version); "
     "shmtest: at least one condition failed; generate --keep-going: at least one line failed"},
    {64, "wrong flag or request"},
    {65, "model damaged or unsupported"},
    {66, "model not found"},
    {69,
     "no transport works, memory or threads are short, the port is busy, client gets no answer, or "
     "shmtest can test nothing"},
    {70, "internal error (a bug in Shoal), or a processor that computes wrongly"},
    {74, "output cannot be written"},
    {75,
     "a rank died, stopped answering or could not be started again, or the model was changed while "
     "it was opened, loaded or in use"},
};

/// What a command was doing when it failed. The exit code depends on it, because the same status
/// code means one thing for a flag and another for a checkpoint.
enum class Stage {
  kRequest,  ///< flags, requests, files for input and output; DATA_LOSS: output is lost
  kModel,    ///< opening MODEL: configuration, tokenizer, checkpoint
  kStart,    ///< starting the ranks and the server
  kRun,      ///< running on them
};

/// How a command ended: the status together with what else decides the exit code. Ok by default.
struct [[nodiscard]] Ending {
  Status why;
  Stage stage = Stage::kRequest;
  Fault fault = Fault::kOwn;

  bool ok() const { return why.ok(); }
};

/// A value, or the Ending that explains why there is none. Made by at().
template <typename T>
using Staged = Result<T, Ending>;

/// Adds to a status what the command was doing, so that an error carries its stage.
Ending at(Stage stage, Status status);
template <typename T>
Staged<T> at(Stage stage, Result<T>&& result) {
  if (!result.ok()) return at(stage, result.status());
  return std::move(result).value();
}
template <typename T>
Staged<T> at(Stage stage, Attempt<T>&& attempt) {
  if (!attempt.ok()) return Ending{attempt.failure().why, stage, attempt.failure().fault};
  return std::move(attempt).value();
}

/// The exit code of an ending.
ExitCode exit_code(const Ending& ending);

/// Whether those who mend Shoal need the codes and the places in the source of its causes: a bug or
/// a rank ended it (exit code 70, or 75 without a changed model).
bool needs_places(const Ending& ending);

/// Reports the error on stderr as one line "shoal: error: what" with its chain of causes below it,
/// at most 2 kB in all. The chain has codes and places in the source only if needs_places(), with
/// --log-level debug, and in JSON. Returns the exit code as main does. If the ending is ok, it
/// prints nothing and returns 0. If the reader of the output has left, SIGPIPE ends the process
/// without a word, as it does other programs, unless it was ignored when this one started.
int report_failure(const Ending& ending);

/// Writes "shoal: error: TEXT" to stderr; with --log-format json it is a log line instead, which
/// has the exit code too, and what else is known of why.
void say_error(std::string_view text, int exit_code, const Ending* why = nullptr);

/// The same for a warning. Nothing is written if the log has errors alone.
void say_warning(std::string_view text);

/// Says on stderr that a signal has ended an answer, and how much of it had come, in tokens or
/// bytes (`unit`): "shoal: interrupted after 3 tokens of the answer". It is no error, because
/// somebody wanted it so; with --log-format json it is a log line like that of one.
void say_interrupted(size_t come, std::string_view unit);

}  // namespace shoal
