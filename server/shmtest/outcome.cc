#include "server/shmtest/outcome.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "runtime/base/counted.h"
#include "runtime/base/number_text.h"

namespace shoal::shmtest {
namespace {

uint64_t number_of(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// Reads "BYTES NAME".
LeftFile left_file_of(std::string_view value) {
  const size_t space = std::min(value.find(' '), value.size());
  return {std::string(value.substr(std::min(space + 1, value.size()))),
          number_of(value.substr(0, space))};
}

void end_with(Outcome& outcome, End end, std::string_view detail) {
  // Keep the first reason, because later ones follow from it.
  if (outcome.end != End::kBroken) return;
  outcome.end = end;
  outcome.detail = std::string(detail);
}

void apply_record(std::string_view key, std::string_view value, Outcome& outcome) {
  if (key == "forbidden") end_with(outcome, End::kForbidden, value);
  if (key == "in_place") outcome.in_place = true;
  if (key == "reached") outcome.reached = static_cast<NamespaceKind>(number_of(value));
  if (key == "skip") end_with(outcome, End::kSkipped, value);
  if (key == "notstarted") end_with(outcome, End::kNotStarted, value);
  if (key == "exit")
    end_with(outcome, End::kExited, ""), outcome.exit_code = static_cast<int>(number_of(value));
  if (key == "signal")
    end_with(outcome, End::kSignalled, ""), outcome.signal = static_cast<int>(number_of(value));
  if (key == "hung") end_with(outcome, End::kHung, "");
  if (key == "milliseconds") outcome.seconds = static_cast<double>(number_of(value)) / 1e3;
  if (key == "peak") outcome.peak_bytes = number_of(value);
  if (key == "oom") outcome.oom_kills = number_of(value);
  if (key == "left") outcome.left.push_back(left_file_of(value));
  if (key == "orphan") outcome.orphans.emplace_back(value);
  if (key == "never_came") outcome.never_came = std::string(value);
  if (key == "trace") outcome.trace = value == "complete" ? Trace::kComplete : Trace::kEnded;
  if (key == "trace_note") outcome.trace_note = std::string(value);
  if (key == "sigbus") outcome.sigbus_seen = true, outcome.sigbus_process = std::string(value);
}

std::string left_reason(const Outcome& outcome) {
  uint64_t bytes = 0;
  for (const LeftFile& file : outcome.left) bytes += file.bytes;
  return cat("left ", outcome.left.size(), outcome.left.size() == 1 ? " name (" : " names (",
             human_bytes(bytes), ") in /dev/shm: ", outcome.left[0].name,
             outcome.left.size() > 1 ? ", ..." : "");
}

std::string end_reason(const Outcome& outcome) {
  switch (outcome.end) {
    case End::kBroken:
      return "the runner's own processes ended without a report (killed from outside?)";
    case End::kForbidden:
    case End::kSkipped:
      return outcome.detail;
    case End::kNotStarted:
      return cat("could not be started: ", outcome.detail);
    case End::kHung:
      return cat("hang: killed after ", with_digits(outcome.seconds, 3), " s (--timeout)");
    case End::kSignalled:
      return cat("killed by ", signal_name(outcome.signal));
    case End::kExited:
      if (outcome.exit_code == 0) return "";
      if (outcome.exit_code > 128 && outcome.exit_code < 128 + 32) {
        return cat("exit code ", outcome.exit_code, " (128 + ",
                   signal_name(outcome.exit_code - 128), ")");
      }
      return cat("exit code ", outcome.exit_code);
  }
  return "";
}

/// Empty if the way in which the command itself ended says it.
std::string sigbus_reason(const Outcome& outcome) {
  if (outcome.end == End::kSignalled && outcome.signal == SIGBUS) return "";
  if (outcome.end == End::kExited && outcome.exit_code == 128 + SIGBUS) return "";
  const std::string_view process = outcome.sigbus_process;
  if (process.empty()) return "SIGBUS in one of its processes";
  const size_t space = std::min(process.find(' '), process.size());
  return cat("SIGBUS killed process ", process.substr(0, space),
             outcome.in_place ? " (" : " of its namespace (",
             process.substr(std::min(space + 1, process.size())), ")");
}

/// Shells give 128 + n if a program died of signal n.
bool is_of_signal(int exit_code) {
  return exit_code > 128 && exit_code <= 128 + SIGRTMAX;
}

std::string processes(uint64_t number) {
  return counted(number, "process", "processes");
}

/// Whether the command ended as it may, and left nothing.
bool behaved(const Outcome& outcome) {
  if (outcome.end != End::kExited || outcome.left_behind) return false;
  if (!outcome.left.empty() || !outcome.orphans.empty()) return false;
  if (outcome.exit_code == 0) return true;
  return outcome.accept == Accept::kError && !outcome.control() &&
         !is_of_signal(outcome.exit_code) && !outcome.sigbus().value_or(false);
}

}  // namespace

bool Outcome::skipped() const {
  return end == End::kSkipped || (!never_came.empty() && behaved(*this));
}

bool Outcome::passed() const {
  return !skipped() && behaved(*this);
}

std::optional<bool> Outcome::sigbus() const {
  if (sigbus_seen || (end == End::kSignalled && signal == SIGBUS)) return true;
  if (trace == Trace::kComplete) return false;
  if (end == End::kExited && exit_code == 128 + SIGBUS) return true;
  const bool named = output_tail.find("Bus error") != std::string::npos ||
                     output_tail.find("SIGBUS") != std::string::npos;
  // A command that is well may print this for other reasons, such as a test's name.
  if (named && (end != End::kExited || exit_code != 0)) return true;
  return std::nullopt;
}

std::string Outcome::reason() const {
  std::string text = end_reason(*this);
  const auto add = [&](const std::string& part) {
    text += cat(text.empty() || part.empty() ? "" : "; ", part);
  };
  if (end == End::kSkipped || end == End::kForbidden) return text;
  if (skipped()) return never_came;
  if (passed() && exit_code != 0) return cat(text, ", accepted");
  if (sigbus().value_or(false)) add(sigbus_reason(*this));
  if (left_behind) add("a process of it hangs in the kernel, and was left behind");
  if (oom_kills > 0) add(cat(processes(oom_kills), " killed by the cgroup's OOM killer"));
  if (!left.empty()) add(left_reason(*this));
  if (!orphans.empty() && end != End::kHung) {
    add(cat(processes(orphans.size()), " outlived it: ", process_text(orphans[0]),
            orphans.size() > 1 ? ", ..." : ""));
  }
  return text;
}

std::string process_text(std::string_view process) {
  const size_t space = std::min(process.find(' '), process.size());
  return cat(process.substr(std::min(space + 1, process.size())), " (pid ",
             process.substr(0, space), ")");
}

void write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void send_record(int fd, std::string_view key, std::string_view value) {
  std::string record = cat(key, " ", value);
  record.push_back('\0');
  write_fully(fd, record);
}

void apply_records(std::string_view text, Outcome& outcome) {
  for (size_t end = text.find('\0'); end != std::string_view::npos; end = text.find('\0')) {
    const std::string_view record = text.substr(0, end);
    const size_t space = record.find(' ');
    if (space != std::string_view::npos)
      apply_record(record.substr(0, space), record.substr(space + 1), outcome);
    text.remove_prefix(end + 1);
  }
}

bool pid1_has_reported(std::string_view records) {
  constexpr std::string_view kLast = {"\0ended \0", 8};
  return records.find(kLast) != std::string_view::npos;
}

std::string root_reason(const Status& status) {
  const Cause& root = status.causes().back();
  return root.os_error == 0 ? root.what : cat(root.what, ": ", ::strerrordesc_np(root.os_error));
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? cat("signal ", signal) : cat("SIG", name);
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return cat(bytes, " B");
  const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace shoal::shmtest
