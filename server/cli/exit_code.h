#pragma once
#include "runtime/base/status.h"

namespace shoal {

/// What the shell hears: numbers of sysexits.h, stable.
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,        ///< wrong flag or request; a file for output or input that cannot be used
  kBadModel = 65,     ///< model damaged or unsupported
  kNoModel = 66,      ///< model not found
  kUnavailable = 69,  ///< no transport works, or the port is busy
  kInternal = 70,     ///< our own fault
  kWorkerDied = 75,   ///< a rank died
};

/// What a command was doing when it failed: the same code means something else in a flag than in a
/// checkpoint.
enum class Stage {
  kRequest,  ///< flags, requests, files for input and output
  kModel,    ///< opening MODEL: configuration, tokenizer, checkpoint
  kStart,    ///< starting the ranks and the server
  kRun,      ///< running on them
};

/// Did the failure come from moving bytes between ranks (its root lies in runtime/memory, device,
/// comm or transport)? Then another transport may work.
bool is_transport_failure(const Status& status);

/// The exit code of a failure. ok() gives kOk.
ExitCode exit_code(const Status& status, Stage stage);

/// Says it on stderr: one line "shoal: CODE: what", its chain of causes below it, under 2 kB in all
/// (a log line instead with --log-format json). Returns the exit code as main does; ok() is 0 and
/// says nothing.
int report_failure(const Status& status, Stage stage);

}  // namespace shoal
