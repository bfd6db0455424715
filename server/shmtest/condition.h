#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal::shmtest {

/// What the command finds at /dev/shm.
enum class ShmKind {
  kTmpfs,    ///< a fresh tmpfs of our own
  kHost,     ///< the machine's, untouched
  kMissing,  ///< nothing: the path does not exist
  kDisk,     ///< a directory on a disk file system
};

/// The environment that a command runs in, as plain values: everything that the names of a
/// condition ask for.
struct Condition {
  std::string name;  ///< as the user wrote it, such as "1m+no-cma"
  ShmKind shm = ShmKind::kTmpfs;
  uint64_t size_bytes = 0;  ///< of the tmpfs; 0 means the kernel's default, half of the memory
  uint64_t inodes = 0;      ///< of the tmpfs, including its root; 0 means the kernel's default
  bool read_only = false;
  bool noexec = false;
  bool other_user = false;  ///< mode 0700, owned by nobody
  bool stale_files = false;
  std::optional<double> full_after_s;  ///< seconds after the start at which the free space is taken
  uint64_t cgroup_bytes = 0;           ///< memory limit; 0 means none
  uint64_t rlimit_fsize_bytes = 0, rlimit_nofile = 0, rlimit_memlock_bytes = 0;  ///< 0 leaves the
                                                                                 ///< limit as it is
  bool no_cma = false, no_memfd = false;
  bool no_ipv6 = false, few_ports = false;

  /// True for the control: the machine as it is. If the command fails there, its failures elsewhere
  /// say nothing about /dev/shm.
  bool control() const { return name == "host"; }
  bool private_network() const { return no_ipv6 || few_ports; }
};

/// What a name decides. Two names that decide the same aspect contradict each other.
enum class Aspect {
  kWhatItIs,  ///< the kind and the size of /dev/shm
  kInodes,
  kWritable,
  kExec,
  kOwner,
  kFilled,
  kStale,
  kMemory,
  kFileSize,
  kDescriptors,
  kLocked,
  kCma,
  kMemfd,
  kIpv6,
  kPorts,
};

/// One row of the table of names, which `--list` prints. Names are joined with '+'.
struct ConditionName {
  const char* name;
  bool basic;  ///< part of the default matrix
  Aspect aspect;
  void (*apply)(Condition& condition);
  const char* description;
};

std::span<const ConditionName> condition_names();

/// Reads NAME or NAME+NAME...; also any size from 4k to 1t, and full-after-Ts with any T in
/// [0, 3600] seconds. Error: INVALID_ARGUMENT for an unknown name (with the nearest known one), or
/// if names contradict each other.
Result<Condition> parse_condition(std::string_view text);

/// Reads conditions separated by commas. Each may be a glob (* and ?) over the table's names, `all`
/// or `basic`. Duplicates are dropped. Error: INVALID_ARGUMENT as in parse_condition, and for a
/// glob that matches nothing or an empty list.
Result<std::vector<Condition>> parse_matrix(std::string_view text);

/// What --list prints: one line per name.
std::string list_conditions();

}  // namespace shoal::shmtest
