#include "runtime/base/log.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <unistd.h>

#include "runtime/base/status.h"

namespace shoal {
namespace {

LogOptions g_options;

std::string timestamp() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
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

}  // namespace

void set_log_options(const LogOptions& options) {
  g_options = options;
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

void log_line(LogLevel level, std::string_view text) {
  if (level < g_options.level) return;
  const int rank = process_rank();
  std::string line;
  if (g_options.format == LogFormat::kJson) {
    line = cat("{\"time\":\"", timestamp(), "\",\"level\":\"", level_name(level),
               "\",\"process\":\"", rank == kFrontRank ? "front" : "worker", "\",");
    if (rank != kFrontRank) line += cat("\"rank\":", rank, ",");
    line += cat("\"pid\":", getpid(), ",\"message\":\"", json_escape(text), "\"}\n");
  } else {
    line = cat(timestamp(), " ", level_name(level), " ",
               rank == kFrontRank ? std::string("front") : cat("rank ", rank), " [", getpid(), "] ",
               text, "\n");
  }
  // One write() per line keeps lines of several processes whole. If stderr is gone, there is
  // nowhere to report that.
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

}  // namespace shoal
