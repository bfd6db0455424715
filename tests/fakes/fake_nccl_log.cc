// Part of a FAKE of libnccl (fake_nccl.cc): its log.
#include "tests/fakes/fake_nccl_log.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <sstream>
#include <string>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/fakes/fake_nccl_settings.h"

namespace fake_nccl {
namespace {

enum class Level { kNone, kVersion, kWarn, kInfo };

struct Log {
  Level level = Level::kNone;
  uint32_t subsystems = 7;
  FILE* file = stdout;
  std::string host;
  std::mutex mutex;
  std::string last_error;
};

thread_local int log_device = 0;

Level level_of(const char* text) {
  if (text == nullptr) return Level::kNone;
  if (::strcasecmp(text, "VERSION") == 0) return Level::kVersion;
  if (::strcasecmp(text, "WARN") == 0) return Level::kWarn;
  const bool more = ::strcasecmp(text, "INFO") == 0 || ::strcasecmp(text, "TRACE") == 0;
  return more ? Level::kInfo : Level::kNone;
}

uint32_t subsystem_bit(const std::string& name) {
  static constexpr const char* kNames[] = {"INIT", "BOOTSTRAP", "ENV", "ALLOC",
                                           "SHM",  "P2P",       "NET", "ALLOC_HOST"};
  if (::strcasecmp(name.c_str(), "ALL") == 0) return ~0U;
  for (uint32_t i = 0; i < std::size(kNames); ++i)
    if (::strcasecmp(name.c_str(), kNames[i]) == 0) return 1U << i;
  return 0;
}

uint32_t subsystems_of(const char* text) {
  if (text == nullptr) return 7;
  const bool inverted = text[0] == '^';
  uint32_t bits = 0;
  std::istringstream names(text + (inverted ? 1 : 0));
  for (std::string one; std::getline(names, one, ',');) bits |= subsystem_bit(one);
  return inverted ? ~bits : bits;
}

/// Replaces %h by the host's name and %p by the process id.
std::string expand(const std::string& pattern, const std::string& host) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    const char kind = pattern[++i];
    if (kind == 'h') path += host;
    if (kind == 'p') path += std::to_string(::getpid());
    if (kind == '%') path += '%';
  }
  return path;
}

Log* open_log() {
  auto* log = new Log;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  log->host = std::string(host).substr(0, std::string(host).find('.'));
  log->level = level_of(std::getenv("NCCL_DEBUG"));
  log->subsystems = subsystems_of(std::getenv("NCCL_DEBUG_SUBSYS"));
  const char* path = std::getenv("NCCL_DEBUG_FILE");
  if (log->level <= Level::kVersion || path == nullptr) return log;
  FILE* file = std::fopen(expand(path, log->host).c_str(), "w");
  if (file == nullptr) return log;
  std::setvbuf(file, nullptr, _IOLBF, 0);
  log->file = file;
  return log;
}

Log& the_log() {
  static Log* const log = open_log();
  return *log;
}

std::string format_text(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

std::string prefix(const Log& log) {
  return log.host + ":" + std::to_string(::getpid()) + ":" + std::to_string(::syscall(SYS_gettid)) +
         " [" + std::to_string(log_device) + "] ";
}

void put(Log& log, const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), log.file);
  std::fflush(log.file);
}

}  // namespace

void set_log_device(int device) {
  log_device = device;
}

void info(Subsystem subsystem, const char* format, ...) {
  Log& log = the_log();
  if (log.level < Level::kInfo || (log.subsystems & static_cast<uint32_t>(subsystem)) == 0) return;
  va_list arguments;
  va_start(arguments, format);
  const std::string text = format_text(format, arguments);
  va_end(arguments);
  const std::lock_guard<std::mutex> lock(log.mutex);
  put(log, prefix(log) + "NCCL INFO " + text + "\n");
}

void warn(const char* where, const char* format, ...) {
  Log& log = the_log();
  va_list arguments;
  va_start(arguments, format);
  const std::string text = format_text(format, arguments);
  va_end(arguments);
  const std::lock_guard<std::mutex> lock(log.mutex);
  log.last_error = text;
  if (log.level < Level::kWarn) return;
  char stamp[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::strftime(stamp, sizeof stamp, "[%Y-%m-%d %H:%M:%S] ", &parts);
  put(log, std::string("\n") + stamp + prefix(log) + where + " NCCL WARN " + text + "\n");
}

void say_version() {
  static std::once_flag once;
  std::call_once(once, [] {
    Log& log = the_log();
    const std::string text = "NCCL version " + settings().version_text + "+cuda13.0";
    if (log.level == Level::kInfo) return info(Subsystem::kInit, "%s", text.c_str());
    const std::lock_guard<std::mutex> lock(log.mutex);
    if (log.level != Level::kNone) put(log, text + "\n");
  });
}

const char* last_error() {
  thread_local std::string given;
  Log& log = the_log();
  const std::lock_guard<std::mutex> lock(log.mutex);
  given = log.last_error;
  return given.c_str();
}

}  // namespace fake_nccl
