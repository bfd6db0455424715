#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// What stands at /dev/shm.
enum class ShmKind {
  kTmpfs,    ///< a fresh tmpfs of our own
  kHost,     ///< the machine's, untouched
  kMissing,  ///< nothing: the path does not exist
  kDisk,     ///< a directory of a disk file system
};

/// The environment that a command runs in, as plain values: what the names of a condition ask for,
/// together.
struct Condition {
  std::string name;  ///< as it was written: "1m+no-cma"
  ShmKind shm = ShmKind::kTmpfs;
  uint64_t size_bytes = 0;  ///< of the tmpfs; 0 is the kernel's default, half of the memory
  uint64_t inodes = 0;      ///< of the tmpfs, its root included; 0 is the kernel's default
  bool read_only = false;
  bool noexec = false;
  bool other_user = false;  ///< mode 0700, owner nobody
  bool stale_files = false;
  std::optional<double> full_after_s;  ///< seconds after the start at which what is free gets taken
  uint64_t cgroup_bytes = 0;           ///< memory limit; 0 is none
  uint64_t rlimit_fsize_bytes = 0, rlimit_nofile = 0, rlimit_memlock_bytes = 0;  ///< 0: untouched
  bool no_cma = false, no_memfd = false;
  bool no_ipv6 = false, few_ports = false;

  bool private_network() const { return no_ipv6 || few_ports; }
};

/// One name of the table: what `--list` prints and what '+' joins.
struct ConditionName {
  const char* name;
  bool basic;           ///< in the default matrix
  const char* aspects;  ///< what it decides, one letter each; two names that share one contradict
                        ///< each other
  void (*apply)(Condition& condition);
  const char* description;
};

std::span<const ConditionName> condition_names();

/// NAME or NAME+NAME...; also full-after-Ts with any T in [0, 3600] seconds. INVALID_ARGUMENT: an
/// unknown name (with the nearest known one), or names that contradict each other.
Result<Condition> parse_condition(std::string_view text);

/// Comma-separated conditions; each may be a glob (* and ?) over the table's names, `all` or
/// `basic`. Doubles are left out. INVALID_ARGUMENT: as parse_condition, a glob that matches
/// nothing, or an empty list.
Result<std::vector<Condition>> parse_matrix(std::string_view text);

/// What --list prints: a line per name.
std::string list_conditions();

}  // namespace shoal::shmtest
