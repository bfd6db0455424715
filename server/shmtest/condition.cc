#include "server/shmtest/condition.h"

#include <algorithm>
#include <fnmatch.h>

#include "runtime/base/split.h"
#include "runtime/base/text_values.h"

namespace shoal::shmtest {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr uint64_t kDockerDefault = 64 * kMiB;
constexpr uint64_t kMinSize = 4 * kKiB, kMaxSize = uint64_t{1} << 40;
constexpr double kMaxFullAfterSeconds = 3600;

// The table of names. Two names of different aspects can still exclude each other; compatible()
// checks that.
constexpr ConditionName kNames[] = {
    {"host", true, Aspect::kWhatItIs, [](Condition& c) { c.shm = ShmKind::kHost; },
     "no change, the control"},
    {"4k", true, Aspect::kWhatItIs, [](Condition& c) { c.size_bytes = 4 * kKiB; },
     "/dev/shm of 4 KiB: one page"},
    {"1m", true, Aspect::kWhatItIs, [](Condition& c) { c.size_bytes = kMiB; }, "/dev/shm of 1 MiB"},
    {"16m", false, Aspect::kWhatItIs, [](Condition& c) { c.size_bytes = 16 * kMiB; },
     "/dev/shm of 16 MiB; any size from 4k to 1t may stand there"},
    {"64m", true, Aspect::kWhatItIs, [](Condition& c) { c.size_bytes = kDockerDefault; },
     "/dev/shm of 64 MiB, Docker's default"},
    {"no-inodes", true, Aspect::kInodes, [](Condition& c) { c.inodes = 1; },
     "no name and no file fits (nr_inodes=1)"},
    {"few-inodes", false, Aspect::kInodes, [](Condition& c) { c.inodes = 4; },
     "three files fit (nr_inodes=4)"},
    {"read-only", true, Aspect::kWritable, [](Condition& c) { c.read_only = true; },
     "/dev/shm mounted read-only"},
    {"missing", true, Aspect::kWhatItIs, [](Condition& c) { c.shm = ShmKind::kMissing; },
     "/dev/shm does not exist"},
    {"not-tmpfs", true, Aspect::kWhatItIs, [](Condition& c) { c.shm = ShmKind::kDisk; },
     "/dev/shm is a directory on a disk"},
    {"noexec", false, Aspect::kExec, [](Condition& c) { c.noexec = true; },
     "/dev/shm mounted noexec (as Docker does)"},
    {"other-user", false, Aspect::kOwner, [](Condition& c) { c.other_user = true; },
     "/dev/shm has mode 0700 and another owner; root loses what lets it pass"},
    {"full", true, Aspect::kFilled, [](Condition& c) { c.full_after_s = 0; },
     "/dev/shm (64 MiB if not said) is full at the start"},
    {"full-after-0.2s", false, Aspect::kFilled, [](Condition& c) { c.full_after_s = 0.2; },
     "all that is free is taken 0.2 s after the start; any number may stand there"},
    {"full-after-2s", false, Aspect::kFilled, [](Condition& c) { c.full_after_s = 2; },
     "the same after 2 s"},
    {"stale-files", false, Aspect::kStale, [](Condition& c) { c.stale_files = true; },
     "files of killed runs lie in /dev/shm (nccl-*, shoal-*, psm_*, sem.*)"},
    {"cgroup-32m", false, Aspect::kMemory, [](Condition& c) { c.cgroup_bytes = 32 * kMiB; },
     "memory cgroup of 32 MiB, below the mount: an OOM kill in place of ENOSPC"},
    {"rlimit-fsize", false, Aspect::kFileSize,
     [](Condition& c) { c.rlimit_fsize_bytes = 64 * kKiB; },
     "files of at most 64 KiB (SIGXFSZ, EFBIG)"},
    {"rlimit-nofile", false, Aspect::kDescriptors, [](Condition& c) { c.rlimit_nofile = 40; },
     "at most 40 descriptors"},
    {"rlimit-memlock", false, Aspect::kLocked,
     [](Condition& c) { c.rlimit_memlock_bytes = 64 * kKiB; },
     "at most 64 KiB locked, without CAP_IPC_LOCK"},
    {"no-cma", true, Aspect::kCma, [](Condition& c) { c.no_cma = true; },
     "process_vm_readv and process_vm_writev give EPERM"},
    {"no-memfd", true, Aspect::kMemfd, [](Condition& c) { c.no_memfd = true; },
     "memfd_create gives EPERM"},
    {"no-ipv6", false, Aspect::kIpv6, [](Condition& c) { c.no_ipv6 = true; },
     "loopback alone, without IPv6"},
    {"ports-exhausted", false, Aspect::kPorts, [](Condition& c) { c.few_ports = true; },
     "loopback alone, two ephemeral ports in all"},
};

Status wrong(std::string what) {
  return Status::error(Code::kInvalidArgument, cat("--matrix: ", what));
}

Status unknown_name(std::string_view name) {
  std::vector<std::string> known;
  for (const ConditionName& entry : kNames) known.emplace_back(entry.name);
  const std::string nearest = nearest_word(name, known);
  return wrong(cat(
      "unknown condition ", shown(name), "; ",
      nearest.empty() ? "shoal shmtest --list prints them" : cat("did you mean ", nearest, "?")));
}

/// The number T in "full-after-Ts".
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

/// The number of bytes that a name such as "128m" means; none if it does not begin with a digit.
Result<std::optional<uint64_t>> size_of_name(std::string_view name) {
  if (name.empty() || name[0] < '0' || name[0] > '9') return std::optional<uint64_t>();
  const Result<uint64_t> bytes = parse_size_flag("--matrix", name);
  if (!bytes.ok()) {
    return wrong(cat("unknown condition ", shown(name),
                     "; a size is such as 65536, 128m or 2g, and shoal shmtest --list prints the "
                     "other names"));
  }
  if (*bytes < kMinSize || *bytes > kMaxSize)
    return wrong(cat(shown(name), ": a /dev/shm has 4k to 1t (a plain number is bytes)"));
  return std::optional<uint64_t>(*bytes);
}

/// Applies one name to the condition. Returns the aspect that it decides.
Result<Aspect> apply_name(std::string_view name, Condition& condition) {
  for (const ConditionName& entry : kNames) {
    if (name != entry.name) continue;
    entry.apply(condition);
    return entry.aspect;
  }
  SHOAL_ASSIGN_OR_RETURN(const std::optional<uint64_t> size, size_of_name(name));
  if (size) {
    condition.size_bytes = *size;
    return Aspect::kWhatItIs;
  }
  SHOAL_ASSIGN_OR_RETURN(const std::optional<double> seconds, full_after_seconds(name));
  if (!seconds) return unknown_name(name);
  condition.full_after_s = seconds;
  return Aspect::kFilled;
}

/// Refuses settings that only a tmpfs of our own can have if /dev/shm is something else, and
/// settings that exclude each other.
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

/// Adds the conditions that match `all`, `basic` or a glob.
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
  unsigned decided = 0;  // one bit for each aspect
  for (const std::string_view name : split(text, '+')) {
    SHOAL_ASSIGN_OR_RETURN(const Aspect aspect, apply_name(name, condition));
    const unsigned bit = 1u << static_cast<unsigned>(aspect);
    if ((decided & bit) != 0) {
      return wrong(cat(shown(text), ": ", shown(name), " contradicts what stands before it"));
    }
    decided |= bit;
  }
  SHOAL_RETURN_IF_ERROR(compatible(condition));
  // Filling a tmpfs of half the machine's memory would be a different test, so use Docker's default
  // size.
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
