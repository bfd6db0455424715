#include "server/shmtest/condition.h"

#include <algorithm>
#include <fnmatch.h>

#include "server/flag_values.h"

namespace shoal::shmtest {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr uint64_t kDockerDefault = 64 * kMiB;
constexpr double kMaxFullAfterSeconds = 3600;

// Aspects: s what is mounted and its size, i inodes, o read-only, x exec, u owner, t stale files, f
// filler, c cgroup, y fsize, z nofile, k memlock, p process_vm, d memfd, 6 IPv6, r ports.
// compatible() says what else excludes what.
constexpr ConditionName kNames[] = {
    {"host", true, "s", [](Condition& c) { c.shm = ShmKind::kHost; }, "no change, the control"},
    {"4k", true, "s", [](Condition& c) { c.size_bytes = 4 * kKiB; }, "/dev/shm of 4 KiB: one page"},
    {"1m", true, "s", [](Condition& c) { c.size_bytes = kMiB; }, "/dev/shm of 1 MiB"},
    {"16m", false, "s", [](Condition& c) { c.size_bytes = 16 * kMiB; }, "/dev/shm of 16 MiB"},
    {"64m", true, "s", [](Condition& c) { c.size_bytes = kDockerDefault; },
     "/dev/shm of 64 MiB, Docker's default"},
    {"no-inodes", true, "i", [](Condition& c) { c.inodes = 1; },
     "no name and no file fits (nr_inodes=1)"},
    {"few-inodes", false, "i", [](Condition& c) { c.inodes = 4; }, "three files fit (nr_inodes=4)"},
    {"read-only", true, "o", [](Condition& c) { c.read_only = true; },
     "/dev/shm mounted read-only"},
    {"missing", true, "s", [](Condition& c) { c.shm = ShmKind::kMissing; },
     "/dev/shm does not exist"},
    {"not-tmpfs", true, "s", [](Condition& c) { c.shm = ShmKind::kDisk; },
     "/dev/shm is a directory on a disk"},
    {"noexec", false, "x", [](Condition& c) { c.noexec = true; },
     "/dev/shm mounted noexec (as Docker does)"},
    {"other-user", false, "u", [](Condition& c) { c.other_user = true; },
     "/dev/shm has mode 0700 and another owner; root loses what lets it pass"},
    {"full", true, "f", [](Condition& c) { c.full_after_s = 0; },
     "/dev/shm (64 MiB if not said) is full at the start"},
    {"full-after-0.2s", false, "f", [](Condition& c) { c.full_after_s = 0.2; },
     "all that is free is taken 0.2 s after the start; any number may stand there"},
    {"full-after-2s", false, "f", [](Condition& c) { c.full_after_s = 2; }, "the same after 2 s"},
    {"stale-files", false, "t", [](Condition& c) { c.stale_files = true; },
     "files of killed runs lie in /dev/shm (nccl-*, shoal-*, psm_*, sem.*)"},
    {"cgroup-32m", false, "c", [](Condition& c) { c.cgroup_bytes = 32 * kMiB; },
     "memory cgroup of 32 MiB, below the mount: an OOM kill in place of ENOSPC"},
    {"rlimit-fsize", false, "y", [](Condition& c) { c.rlimit_fsize_bytes = 64 * kKiB; },
     "files of at most 64 KiB (SIGXFSZ, EFBIG)"},
    {"rlimit-nofile", false, "z", [](Condition& c) { c.rlimit_nofile = 40; },
     "at most 40 descriptors"},
    {"rlimit-memlock", false, "k", [](Condition& c) { c.rlimit_memlock_bytes = 64 * kKiB; },
     "at most 64 KiB locked, without CAP_IPC_LOCK"},
    {"no-cma", true, "p", [](Condition& c) { c.no_cma = true; },
     "process_vm_readv and process_vm_writev give EPERM"},
    {"no-memfd", true, "d", [](Condition& c) { c.no_memfd = true; }, "memfd_create gives EPERM"},
    {"no-ipv6", false, "6", [](Condition& c) { c.no_ipv6 = true; }, "loopback alone, without IPv6"},
    {"ports-exhausted", false, "r", [](Condition& c) { c.few_ports = true; },
     "loopback alone, two ephemeral ports in all"},
};

Status wrong(std::string what) {
  return Status::error(Code::kInvalidArgument, cat("--matrix: ", what));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Status unknown_name(std::string_view name) {
  std::vector<std::string> known;
  for (const ConditionName& entry : kNames) known.emplace_back(entry.name);
  const std::string nearest = nearest_word(name, known);
  return wrong(cat(
      "unknown condition ", shown(name), "; ",
      nearest.empty() ? "shoal shmtest --list prints them" : cat("did you mean ", nearest, "?")));
}

/// T of "full-after-Ts".
Result<std::optional<double>> full_after_seconds(std::string_view name) {
  constexpr std::string_view kPrefix = "full-after-";
  if (!name.starts_with(kPrefix) || !name.ends_with("s")) return std::optional<double>();
  const std::string_view number = name.substr(kPrefix.size(), name.size() - kPrefix.size() - 1);
  const Result<double> seconds = parse_number_flag("--matrix", number);
  if (!seconds.ok() || *seconds < 0 || *seconds > kMaxFullAfterSeconds) {
    return wrong(
        cat("full-after-Ts needs seconds in [0, ", kMaxFullAfterSeconds, "], not ", shown(number)));
  }
  return std::optional<double>(*seconds);
}

/// Applies one name; returns its aspects.
Result<std::string> apply_name(std::string_view name, Condition& condition) {
  for (const ConditionName& entry : kNames) {
    if (name != entry.name) continue;
    entry.apply(condition);
    return std::string(entry.aspects);
  }
  SHOAL_ASSIGN_OR_RETURN(const std::optional<double> seconds, full_after_seconds(name));
  if (!seconds) return unknown_name(name);
  condition.full_after_s = seconds;
  return std::string("f");
}

/// Things that only a tmpfs of our own can be.
Status compatible(const Condition& c) {
  if (c.shm != ShmKind::kTmpfs &&
      (c.inodes != 0 || c.read_only || c.noexec || c.other_user || c.full_after_s)) {
    return wrong(cat(
        c.name, ": the machine's own, a missing or a disk's /dev/shm cannot be changed further"));
  }
  if (c.stale_files && c.shm != ShmKind::kTmpfs && c.shm != ShmKind::kDisk) {
    return wrong(cat(c.name, ": stale files need a /dev/shm of their own"));
  }
  if (c.stale_files && c.inodes != 0) return wrong(cat(c.name, ": the stale files would not fit"));
  if (c.full_after_s && c.inodes == 1) return wrong(cat(c.name, ": what fills it would not fit"));
  return {};
}

Status add_once(std::vector<Condition>& matrix, std::string_view name) {
  SHOAL_ASSIGN_OR_RETURN(Condition condition, parse_condition(name));
  const auto same = [&](const Condition& known) { return known.name == condition.name; };
  if (std::none_of(matrix.begin(), matrix.end(), same)) matrix.push_back(std::move(condition));
  return {};
}

/// `all`, `basic` or a glob.
Status add_matching(std::vector<Condition>& matrix, const std::string& glob) {
  bool any = false;
  for (const ConditionName& entry : kNames) {
    const bool matches =
        glob == "all" ||
        (glob == "basic" ? entry.basic : ::fnmatch(glob.c_str(), entry.name, 0) == 0);
    if (!matches) continue;
    any = true;
    SHOAL_RETURN_IF_ERROR(add_once(matrix, entry.name));
  }
  return any ? Status()
             : wrong(cat(shown(glob), " matches no condition; shoal shmtest --list prints them"));
}

}  // namespace

std::span<const ConditionName> condition_names() {
  return kNames;
}

Result<Condition> parse_condition(std::string_view text) {
  Condition condition;
  condition.name = std::string(text);
  std::string decided;
  for (const std::string_view name : split(text, '+')) {
    SHOAL_ASSIGN_OR_RETURN(const std::string aspects, apply_name(name, condition));
    if (decided.find_first_of(aspects) != std::string::npos) {
      return wrong(cat(shown(text), ": ", shown(name), " contradicts what stands before it"));
    }
    decided += aspects;
  }
  SHOAL_RETURN_IF_ERROR(compatible(condition));
  // Filling half of the machine's memory would be another test.
  if (condition.full_after_s && condition.size_bytes == 0) condition.size_bytes = kDockerDefault;
  return condition;
}

Result<std::vector<Condition>> parse_matrix(std::string_view text) {
  std::vector<Condition> matrix;
  for (const std::string_view part : split(text, ',')) {
    const bool glob =
        part == "all" || part == "basic" || part.find_first_of("*?") != std::string_view::npos;
    SHOAL_RETURN_IF_ERROR(glob ? add_matching(matrix, std::string(part)) : add_once(matrix, part));
  }
  return matrix;
}

std::string list_conditions() {
  std::string text;
  for (const ConditionName& entry : kNames) {
    const std::string name = entry.name;
    text += cat(name, std::string(17 - std::min<size_t>(16, name.size()), ' '),
                entry.basic ? "basic  " : "       ", entry.description, "\n");
  }
  return text;
}

}  // namespace shoal::shmtest
