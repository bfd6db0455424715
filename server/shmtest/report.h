#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/shmtest/runner.h"

namespace shoal::shmtest {

// `colour`: the verdicts (pass, FAIL, skip) have colours.

/// One line for stderr, printed when a condition ends. of: how many there are, 0 if that is
/// unknown.
std::string progress_line(const Outcome& outcome, size_t number, size_t of, bool colour = false);

/// The table of a search grows while it runs, so that people see every step at once, and once: the
/// row of a step that has ended, with the table's heading above the first.
std::string search_row(const Outcome& outcome, bool first, bool colour = false);

/// What comes below these rows: what is known of the failure in the largest size that is too small,
/// with the end of its output, and then the answer.
std::string search_report(const RunResult& run);

/// The report of a matrix for people: what is known of each failure, with the end of its output,
/// and then, so that a terminal ends with it, a row for each condition with its reason.
/// `conditions` is how many the matrix has.
std::string table(const RunResult& run, size_t conditions, bool colour = false);

/// Whether nothing was tested, although the run went to its end: every condition, or the control,
/// was skipped.
bool nothing_tested(const RunResult& run);

/// Whether the command ran, and exited with 0 in no condition, so that one that never works would
/// look the same.
bool never_worked(const RunResult& run);

/// Whether it never worked, and the control, which would have shown why, was not asked for.
bool lacks_control(const RunResult& run);

/// What is said then.
inline constexpr std::string_view kLacksControl =
    "the command exited with 0 in no condition, so that nothing shows that it works at all; add "
    "the control, --matrix host,...";

/// One JSON document, docs/schemas/shmtest.schema.json: {"schema": 2, "version": the program's,
/// "command": [...], "control_failed": false, "never_worked": false, "passed": n, "failed": n,
/// "skipped": n, "conditions": [...], "min_size_bytes": n, "largest_failing_bytes": n}. The last
/// two are null without a search.
std::string json_report(const RunResult& run, const std::vector<std::string>& command,
                        const std::string& version);

/// JUnit XML: one testsuite, with a testcase per condition. Its class name is that of the program,
/// its property shm_peak_bytes the peak or "unknown", its system-out the end of the output. The
/// suite has the property "warning" if lacks_control(). `conditions` is how many the matrix has.
std::string junit_report(const RunResult& run, const std::vector<std::string>& command,
                         size_t conditions);

}  // namespace shoal::shmtest
