#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/shmtest/outcome.h"

namespace shoal::shmtest {

/// One line for stderr as a condition ends.
std::string progress_line(const Outcome& outcome, size_t number, size_t of);

/// For people: a row per condition, then each failure's reason with the end of its output.
std::string table(const std::vector<Outcome>& outcomes);

/// One document: {"command": [...], "passed": n, "failed": n, "skipped": n, "conditions": [...]}.
std::string json_report(const std::vector<Outcome>& outcomes,
                        const std::vector<std::string>& command);

/// JUnit XML: one testsuite, a testcase per condition.
std::string junit_report(const std::vector<Outcome>& outcomes,
                         const std::vector<std::string>& command);

/// Text for XML's content and attributes. What XML 1.0 cannot hold at all (control characters,
/// broken UTF-8) becomes U+FFFD.
std::string xml_escape(std::string_view text);

}  // namespace shoal::shmtest
