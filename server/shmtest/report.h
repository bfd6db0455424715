#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// One line for stderr, printed when a condition ends.
std::string progress_line(const Outcome& outcome, size_t number, size_t of);

/// The report for people: a row per condition, then the reason of each failure with the end of its
/// output.
std::string table(const std::vector<Outcome>& outcomes);

/// One JSON document: {"command": [...], "passed": n, "failed": n, "skipped": n, "conditions":
/// [...]}.
std::string json_report(const std::vector<Outcome>& outcomes,
                        const std::vector<std::string>& command);

/// JUnit XML: one testsuite, with a testcase per condition.
std::string junit_report(const std::vector<Outcome>& outcomes,
                         const std::vector<std::string>& command);

/// Escapes text for XML content and attributes. Characters that XML 1.0 cannot represent (control
/// characters, broken UTF-8) become U+FFFD.
std::string xml_escape(std::string_view text);

}  // namespace shoal::shmtest
