#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace shoal {

class Status;

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

/// How long the line that says why a process ends waits for a reader that has stopped.
inline constexpr int64_t kLastLineMs = 1'000;
/// How long any line waits for the reader, which may only be slow. If it does not read within this
/// time, it counts as stopped, and no line waits for it again until it has read.
inline constexpr int64_t kSlowReaderMs = 20;

/// A status as this process shows it to its reader: for a person its plain_text(), and with
/// --log-level debug or --log-format json the whole to_string(), at most max_bytes long.
std::string explained(const Status& status, size_t max_bytes = 1900);

/// The members that every line has as JSON.
inline constexpr std::string_view kLogMembers[] = {"time", "level", "process",
                                                   "rank", "pid",   "message"};

/// The name of a fact. That of a member that every line has does not compile.
struct LogName {
  consteval LogName(const char* name) : text(name) {  // a literal becomes a name by itself
    for (const std::string_view taken : kLogMembers)
      if (text == taken) throw "every line has a member of this name";
  }
  std::string_view text;
};

/// Nothing (null), a text, a number, or whether something is so.
using LogValue = std::variant<std::monostate, std::string_view, int64_t, double, bool>;

/// A fact that a line tells, for programs. A text is only looked at until the line is written.
struct LogField {
  LogName name;
  LogValue value;
};

/// The first one is "event", which names the kind of line. docs/json.md lists them all.
using LogFields = std::initializer_list<LogField>;

/// The value; null if there is none.
template <typename Optional>
LogValue value_or_null(const Optional& value) {
  return value ? LogValue(*value) : LogValue();
}

/// A time in seconds as milliseconds with at most three decimals; null if there is none.
LogValue milliseconds_of(std::optional<double> seconds);

/// Writes one line, unless `level` is below the one that is set: time (UTC, microseconds), level,
/// process (front or rank N, and pid) and text. Thread-safe. The formats are
/// `2026-11-21T03:43:00.123456Z INFO rank 1 [4711] loading 40 %` and {"time":..., "level":...,
/// "process":"worker", "rank":..., "pid":..., "message":...}, where the front has no "rank", and
/// the fields follow the message. On a terminal the text has the local time of day instead, as
/// 03:43:00.123, and may have colours. It has no fields, because its words say all of them that a
/// person needs.
///
/// It never waits longer than kSlowReaderMs, or wait_ms if that is more. If nobody reads stderr, or
/// its file is full, the line is lost and counted, because a stuck reader must not stop a step or a
/// recovery. Once there is room again, a line says how many were lost.
void log_line(LogLevel level, std::string_view text, LogFields fields = {}, int64_t wait_ms = 0);

/// Says how many lines were lost, if some were and there is room now. For code that runs again and
/// again, because the next line may be hours away. Costs nothing if no line was lost.
void log_lost_lines();

/// Writes text to stderr that is not a log line, in turn with the log and waiting no longer than
/// wait_ms. False: it is lost.
bool write_stderr(std::string_view text, int64_t wait_ms = 0);

/// Shows how far something is, as the last line of the terminal that stderr is. It does nothing if
/// stderr is none. The line stays until another one is shown, or until what is written to stderr,
/// by this process or by the log of a rank, takes its place. A signal that ends the process clears
/// it, and so does an empty text.
void show_progress_line(std::string_view text);
/// Clears the line in a process that ends without its usual end. Allowed in a handler of signals.
void clear_progress_line();

inline void log_debug(std::string_view text, LogFields fields = {}) {
  log_line(LogLevel::kDebug, text, fields);
}
inline void log_info(std::string_view text, LogFields fields = {}) {
  log_line(LogLevel::kInfo, text, fields);
}
inline void log_warning(std::string_view text, LogFields fields = {}) {
  log_line(LogLevel::kWarning, text, fields);
}
inline void log_error(std::string_view text, LogFields fields = {}) {
  log_line(LogLevel::kError, text, fields);
}

/// The text escaped for JSON, without quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_escape(std::string_view text);

}  // namespace shoal
