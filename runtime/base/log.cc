#include "runtime/base/log.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>
#include <mutex>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/counted.h"
#include "runtime/base/patient_writer.h"
#include "runtime/base/status.h"
#include "runtime/base/terminal.h"

namespace shoal {
namespace {

LogOptions g_options;

/// Microseconds since 1970.
int64_t micros_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

/// The local time of day, for a person who watches.
std::string time_of_day() {
  const int64_t micros = micros_now();
  const std::time_t seconds = micros / 1000000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[64];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", local.tm_hour, local.tm_min, local.tm_sec,
                static_cast<int>(micros % 1000000 / 1000));
  return text;
}

std::string timestamp() {
  const int64_t micros = micros_now();
  const std::time_t seconds = micros / 1000000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[96];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(micros % 1000000));
  return text;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

std::string shown_level(LogLevel level) {
  const bool colour = level >= LogLevel::kWarning && wants_colour(STDERR_FILENO);
  return painted(level_name(level), level == LogLevel::kError ? Paint::kRed : Paint::kYellow,
                 colour);
}

/// Length of the valid UTF-8 sequence at text[at], 0 if there is none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  const size_t length = lead < 0x80         ? 1
                        : (lead >> 5) == 6  ? 2
                        : (lead >> 4) == 14 ? 3
                        : (lead >> 3) == 30 ? 4
                                            : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  if (length == 2 && lead < 0xC2) return 0;
  if (length == 3 && lead == 0xE0 && byte(at + 1) < 0xA0) return 0;
  if (length == 3 && lead == 0xED && byte(at + 1) >= 0xA0) return 0;
  if (length == 4 && lead == 0xF0 && byte(at + 1) < 0x90) return 0;
  if (length == 4 && (lead > 0xF4 || (lead == 0xF4 && byte(at + 1) >= 0x90))) return 0;
  return length;
}

/// The value as JSON. What JSON has no word for, NaN and infinities, is null.
std::string json_of(const LogValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value))
    return cat('"', json_escape(*text), '"');
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  if (const auto* so = std::get_if<bool>(&value)) return *so ? "true" : "false";
  const auto* number = std::get_if<double>(&value);
  if (number == nullptr || !std::isfinite(*number)) return "null";
  char digits[32];  // the fewest that read back as the same number
  return {digits, std::to_chars(digits, std::end(digits), *number).ptr};
}

std::string json_line(LogLevel level, std::string_view text, LogFields fields) {
  const int rank = process_rank();
  std::string line = cat("{\"time\":\"", timestamp(), "\",\"level\":\"", level_name(level),
                         "\",\"process\":\"", rank == kFrontRank ? "front" : "worker", "\",");
  if (rank != kFrontRank) line += cat("\"rank\":", rank, ",");
  line += cat("\"pid\":", getpid(), ",\"message\":\"", json_escape(text), "\"");
  for (const LogField& field : fields)
    line += cat(",\"", field.name.text, "\":", json_of(field.value));
  return line + "}\n";
}

std::string format_line(LogLevel level, std::string_view text, LogFields fields) {
  if (g_options.format == LogFormat::kJson) return json_line(level, text, fields);
  const int rank = process_rank();
  return cat(is_terminal(STDERR_FILENO) ? time_of_day() : timestamp(), " ", shown_level(level), " ",
             rank == kFrontRank ? std::string("front") : cat("rank ", rank), " [", getpid(), "] ",
             text, "\n");
}

/// The last line of the terminal is one that show_progress_line() has written. A handler of signals
/// reads it.
std::atomic<bool> g_progress_shown = false;
static_assert(std::atomic<bool>::is_always_lock_free);

/// JSON is for programs, also on a terminal.
bool shows_progress() {
  return g_options.format == LogFormat::kText && is_terminal(STDERR_FILENO);
}

/// What makes room for the next text. A rank does not know whether the front shows a line. But that
/// leaves the cursor at its beginning, and otherwise there is nothing behind the cursor.
const char* room_for_text() {
  if (g_progress_shown) return "\r\033[K";
  return process_rank() != kFrontRank && shows_progress() ? "\033[K" : "";
}

/// The signals that end this process, and are not handled otherwise, clear the line first.
void clear_at_signals() {
  struct sigaction action {};
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  action.sa_handler = [](int number) {
    clear_progress_line();
    ::raise(number);  // it ends the process when the handler returns
  };
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_DFL) ::sigaction(number, &action, nullptr);
  }
}

/// Everything that this process writes to stderr goes through here.
struct Stderr {
  std::mutex mutex;  // guards all but `lost`
  PatientWriter writer{STDERR_FILENO};
  bool clears_at_signals = false;
  int why_lost = 0;  // the last errno
  std::atomic<int64_t> lost = 0;

  /// Writes the text in place of a progress line. Call it with the mutex held.
  bool write(std::string_view text, int64_t wait_ms) {
    if (!writer.write(cat(room_for_text(), text), wait_ms)) return false;
    g_progress_shown = false;
    return true;
  }

  /// Call it with the mutex held.
  bool say_lost(int64_t wait_ms) {
    const int64_t lines = lost;
    if (lines == 0) return true;
    const std::string text =
        cat(counted(lines, "log line was", "log lines were"),
            " lost: ", why_lost == EAGAIN ? "nobody read them" : ::strerror(why_lost));
    if (!write(format_line(LogLevel::kWarning, text, {{"event", "lost_lines"}, {"lines", lines}}),
               wait_ms))
      return false;
    lost = 0;
    return true;
  }
};

/// Never destroyed, because threads that outlive main() may log.
Stderr& stderr_of_process() {
  static Stderr* const one = new Stderr;
  return *one;
}

}  // namespace

void set_log_options(const LogOptions& options) {
  g_options = options;
  Stderr& output = stderr_of_process();
  const std::lock_guard lock(output.mutex);
  output.writer.prepare();
}
const LogOptions& log_options() {
  return g_options;
}

std::string json_escape(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 8);
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(text, i);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    if (length > 1) {
      out.append(text.substr(i, length));
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
    i += length;
  }
  return out;
}

LogValue milliseconds_of(std::optional<double> seconds) {
  return seconds ? LogValue(std::round(*seconds * 1e6) / 1e3) : LogValue();
}

std::string explained(const Status& status, size_t max_bytes) {
  const bool whole = g_options.level == LogLevel::kDebug || g_options.format == LogFormat::kJson;
  return whole ? status.to_string(max_bytes) : status.plain_text(max_bytes);
}

void log_line(LogLevel level, std::string_view text, LogFields fields, int64_t wait_ms) {
  if (level < g_options.level) return;
  const std::string line = format_line(level, text, fields);
  Stderr& output = stderr_of_process();
  const std::lock_guard lock(output.mutex);
  if (output.lost == 0) wait_ms = std::max(wait_ms, kSlowReaderMs);
  if (output.say_lost(wait_ms) && output.write(line, wait_ms)) return;
  output.why_lost = output.writer.error();
  ++output.lost;
}

void log_lost_lines() {
  Stderr& output = stderr_of_process();
  if (output.lost == 0) return;
  const std::lock_guard lock(output.mutex);
  (void)output.say_lost(0);
}

bool write_stderr(std::string_view text, int64_t wait_ms) {
  Stderr& output = stderr_of_process();
  const std::lock_guard lock(output.mutex);
  return output.write(text, wait_ms);
}

void show_progress_line(std::string_view text) {
  if (!shows_progress()) return;
  Stderr& output = stderr_of_process();
  const std::lock_guard lock(output.mutex);
  if (text.empty()) {
    if (g_progress_shown) (void)output.write("", 0);
    return;
  }
  if (!std::exchange(output.clears_at_signals, true)) clear_at_signals();
  g_progress_shown = true;  // before it is, because a signal may come in between
  (void)output.writer.write(cat("\r\033[K", text, "\r"), 0);
}

void clear_progress_line() {
  const std::string_view clearing = room_for_text();
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (clearing.empty() || ::poll(&room, 1, 0) <= 0) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, clearing.data(), clearing.size());
}

}  // namespace shoal
