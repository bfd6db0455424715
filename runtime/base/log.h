#pragma once
#include <string>
#include <string_view>

namespace shoal {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class LogFormat { kText, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  ///< lines below it are dropped
  LogFormat format = LogFormat::kText;
};

/// Call this once at the start, before there are threads. Lines go to stderr, one write() each, so
/// that the lines of several processes do not mix.
void set_log_options(const LogOptions& options);
const LogOptions& log_options();

/// Writes one line, unless `level` is below the one that is set: time (UTC, microseconds), level,
/// process (front or rank N, and pid) and text. Thread-safe. The formats are
/// `2026-11-21T03:43:00.123456Z INFO rank 1 [4711] loading 40 %` and {"time":..., "level":...,
/// "process":"worker", "rank":..., "pid":..., "message":...}, where the front has no "rank".
void log_line(LogLevel level, std::string_view text);

inline void log_debug(std::string_view text) {
  log_line(LogLevel::kDebug, text);
}
inline void log_info(std::string_view text) {
  log_line(LogLevel::kInfo, text);
}
inline void log_warning(std::string_view text) {
  log_line(LogLevel::kWarning, text);
}
inline void log_error(std::string_view text) {
  log_line(LogLevel::kError, text);
}

/// The text escaped for JSON, without quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_escape(std::string_view text);

}  // namespace shoal
