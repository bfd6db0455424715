#include "runtime/base/status.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace shoal {
namespace {

int g_process_rank = kFrontRank;

constexpr const char* kCodeNames[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

/// The last two components of a path. They are enough to find the file, and reveal nothing about
/// the machine that built it.
std::string short_path(const char* file) {
  std::string_view path(file);
  size_t cut = path.rfind('/');
  if (cut != std::string_view::npos && cut > 0) cut = path.rfind('/', cut - 1);
  return std::string(cut == std::string_view::npos ? path : path.substr(cut + 1));
}

/// What failed, and what the system said of it.
std::string what_of(const Cause& cause, bool with_errno) {
  if (cause.os_error == 0) return cause.what;
  return cat(cause.what, ": ", std::strerror(cause.os_error),
             with_errno ? cat(" (", cause.os_error, ")") : "");
}

std::string cause_line(const Cause& cause) {
  const std::string who = cause.rank == kFrontRank ? "front" : cat("rank ", cause.rank);
  return cat("\n  because ", code_name(cause.code), " [", who, "] ", cause.where, " ",
             what_of(cause, true));
}

std::string plain_line(const Cause& cause) {
  const std::string who = cause.rank == kFrontRank ? "" : cat("rank ", cause.rank, ": ");
  return cat("\n  because ", who, what_of(cause, false));
}

std::string clip(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  if (max_bytes < 3) return "";
  size_t cut = max_bytes - 3;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80)
    --cut;  // do not cut a UTF-8 character in half
  return text.substr(0, cut) + "...";
}

/// The chain of causes in at most max_bytes. `line` writes each cause but the first.
std::string chain_text(const std::vector<Cause>& causes, const std::string& before,
                       std::string (*line)(const Cause&), size_t max_bytes) {
  const std::string head = before + what_of(causes.front(), !before.empty());
  if (causes.size() == 1) return clip(head, max_bytes);
  // The two ends of the chain matter most: what was wanted, and the root cause. The root gets at
  // least a third of the room, and causes in the middle are dropped first.
  constexpr size_t kMark = 6;  // "\n  ..."
  const size_t room = max_bytes > kMark ? max_bytes - kMark : 0;
  const size_t for_root = std::max(room / 3, room - std::min(room, head.size()));
  const std::string root = clip(line(causes.back()), for_root);
  std::string text = clip(head, room - root.size());
  for (size_t i = 1; i + 1 < causes.size(); ++i) {
    const std::string one = line(causes[i]);
    if (text.size() + one.size() + root.size() > room) {
      text += "\n  ...";
      break;
    }
    text += one;
  }
  return text + root;
}

}  // namespace

void set_process_rank(int rank) {
  g_process_rank = rank;
}
int process_rank() {
  return g_process_rank;
}

std::string code_name(Code code) {
  const int number = static_cast<int>(code);
  if (number < 0 || number >= static_cast<int>(std::size(kCodeNames))) return cat("CODE_", number);
  return kCodeNames[number];
}

Status Status::error(Code code, std::string what, int os_error, const char* file, int line) {
  return Status({Cause{code, g_process_rank, cat(short_path(file), ":", line), std::move(what),
                       os_error, Fault::kOwn}});
}

Status Status::blamed_on(Fault fault) const {
  Status blamed = *this;
  if (!blamed.ok()) blamed.causes_.back().fault = fault;
  return blamed;
}

Status Status::because_of(Code code, std::string what, const char* file, int line) const {
  if (ok()) return *this;
  std::vector<Cause> causes;
  causes.reserve(causes_.size() + 1);
  causes.push_back(
      Cause{code, g_process_rank, cat(short_path(file), ":", line), std::move(what), 0});
  causes.insert(causes.end(), causes_.begin(), causes_.end());
  return Status(std::move(causes));
}

Status Status::while_doing(std::string what, const char* file, int line) const {
  return because_of(code(), std::move(what), file, line);
}

std::string Status::to_string(size_t max_bytes) const {
  if (ok()) return "OK";
  return chain_text(causes_, cat(code_name(code()), ": "), cause_line, max_bytes);
}

std::string Status::plain_text(size_t max_bytes) const {
  if (ok()) return "";
  return chain_text(causes_, "", plain_line, max_bytes);
}

}  // namespace shoal
