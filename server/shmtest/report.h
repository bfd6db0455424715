#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/shmtest/runner.h"

namespace shoal::shmtest {

/// What comes below the rows of a search (search_row()): what is known of the failure in the
/// largest size that is too small, with the end of its output, and then the answer.
std::string search_report(const RunResult& run);

/// The report of a matrix for people: what is known of each failure, with the end of its output,
/// and then, so that a terminal ends with it, a row for each condition with its reason.
/// `conditions` is how many the matrix has. `colour`: the verdicts have colours.
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
