#include "runtime/transport/needs/budget.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"

namespace shoal {
namespace {

template <int64_t Consumer::*Amount>
int64_t sum(const std::vector<Consumer>& consumers) {
  int64_t total = 0;
  for (const Consumer& consumer : consumers) total += consumer.*Amount;
  return total;
}

/// "it needs at least 65011712 B (62.0 MiB)"
std::string needs(const ShmNeed& need, int64_t bytes) {
  return cat("it needs ", words(need.bound), bytes_text(bytes));
}

/// The bytes, rounded too unless that would hide that they are not the others.
std::string beside(int64_t bytes, int64_t others) {
  const bool hides = bytes != others && rounded_bytes_text(bytes) == rounded_bytes_text(others);
  return hides ? cat(bytes, " B") : bytes_text(bytes);
}

Status check_memory(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options) {
  const int64_t bytes = need.memory_bytes(), cgroup = facts.cgroup.available_bytes();
  if (cgroup >= 0 && options.reserved_bytes > cgroup - bytes) {
    // Without a transport (one rank), or over TCP, the transport itself takes no such memory.
    const std::string what =
        bytes == 0 ? cat("the ranks take ", bytes_text(options.reserved_bytes), " of memory")
                   : cat(needs(need, bytes), " of memory beside ",
                         bytes_text(options.reserved_bytes), " that the ranks take besides");
    return Status::error(Code::kResourceExhausted,
                         cat(what, "; the memory cgroup has ", bytes_text(cgroup), " left"));
  }
  // What is reserved besides is not added here, because weights may be mapped files and swap may
  // take the rest.
  if (facts.memory_available_bytes > 0 && bytes > facts.memory_available_bytes) {
    return Status::error(Code::kResourceExhausted,
                         cat(needs(need, bytes), " of memory; the machine has ",
                             bytes_text(facts.memory_available_bytes), " available"));
  }
  return {};
}

/// True if something ran out. check_space reports such a shortage afterwards, with its numbers.
bool is_shortage(int error) {
  return error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EMFILE ||
         error == ENFILE;
}

/// Only a tmpfs will do. Another file system on /dev/shm would write the ranks' traffic to a disk,
/// hugetlbfs counts in pages of its own, and ramfs has no limit that it keeps. A type that is not
/// known forbids nothing.
Status check_directory(const ShmNeed& need, const ShmDirFacts& dir) {
  const std::string what = cat(needs(need, need.dev_shm_bytes()), " in ", dir.path);
  if (!dir.exists)
    return Status::error(Code::kNotFound, cat(what, dir.occupied ? ", which is no directory"
                                                                 : ", which is missing"));
  if (!dir.fs_type.empty() && dir.fs_type != "tmpfs") {
    return Status::error(Code::kPermissionDenied,
                         cat(what, ", which is ", dir.fs_type, " and no tmpfs"));
  }
  if (dir.open_errno != 0 && !is_shortage(dir.open_errno)) {
    return Status::error(Code::kPermissionDenied, cat(what, ", where no file can be made"),
                         dir.open_errno);
  }
  return {};
}

Status check_bytes(const ShmNeed& need, const ShmDirFacts& dir, int64_t headroom_bytes) {
  const int64_t bytes = need.dev_shm_bytes();
  if (dir.size_bytes == 0 || headroom_bytes <= dir.free_bytes - bytes) return {};
  return Status::error(
      Code::kResourceExhausted,
      cat("it needs ", words(need.bound), beside(bytes, dir.free_bytes), " in ", dir.path, " and ",
          bytes_text(headroom_bytes), " left free for others; ", beside(dir.free_bytes, bytes),
          " of ", bytes_text(dir.size_bytes), " are free"));
}

Status check_files(const ShmNeed& need, const ShmDirFacts& dir) {
  if (dir.total_inodes > 0 && need.dev_shm_inodes() > dir.free_inodes) {
    return Status::error(Code::kResourceExhausted,
                         cat("it needs ", counted(need.dev_shm_inodes(), "inode"), " in ", dir.path,
                             "; ", dir.free_inodes, " of ", dir.total_inodes,
                             dir.free_inodes == 1 ? " is" : " are", " free"));
  }
  if (dir.open_errno != 0) {
    return Status::error(
        Code::kResourceExhausted,
        cat(needs(need, need.dev_shm_bytes()), " in ", dir.path, ", where no file could be made"),
        dir.open_errno);
  }
  return {};
}

/// If a real allocation failed, every need of at least its size is refused.
Status check_probe(const ShmNeed& need, const ShmDirFacts& dir) {
  const int64_t bytes = need.dev_shm_bytes();
  if (dir.probe_errno == 0 || bytes < dir.probed_bytes) return {};
  return Status::error(Code::kResourceExhausted,
                       cat(needs(need, bytes), " in ", dir.path, "; a try to allocate ",
                           bytes_text(dir.probed_bytes), " there failed",
                           dir.probe_note.empty() ? "" : ": ", dir.probe_note),
                       dir.probe_errno);
}

/// What decides whether /dev/shm has the bytes.
enum class Deciding { kArithmetic, kReservation };

Status check_all(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options,
                 Deciding deciding) {
  SHOAL_RETURN_IF_ERROR(check_memory(need, facts, options));
  const int64_t bytes = need.dev_shm_bytes();
  if (bytes > 0) {
    SHOAL_RETURN_IF_ERROR(check_directory(need, facts.dev_shm));
    if (deciding == Deciding::kArithmetic)
      SHOAL_RETURN_IF_ERROR(check_bytes(need, facts.dev_shm, options.headroom_bytes));
    SHOAL_RETURN_IF_ERROR(check_files(need, facts.dev_shm));
  }
  const int64_t file = need.largest_file_bytes(), limit = facts.limits.fsize_bytes;
  if (limit >= 0 && file > limit) {
    return Status::error(Code::kResourceExhausted,
                         cat("it needs a file of ", bytes_text(file), "; the file size limit is ",
                             bytes_text(limit), " (ulimit -f)"));
  }
  return bytes > 0 ? check_probe(need, facts.dev_shm) : Status();
}

Status judge(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options,
             Deciding deciding) {
  const Status refused = check_all(need, facts, options, deciding);
  const int64_t limit = facts.limits.nofile;
  if (limit < 0 || need.descriptors <= limit) return refused;
  std::string files = cat("a process needs ", need.descriptors, " open files; the limit is ", limit,
                          " (ulimit -n)");
  if (refused.ok()) return Status::error(Code::kResourceExhausted, std::move(files));
  // Report this limit together with the first refusal, so that the user does not run into it next.
  std::vector<Cause> causes = refused.causes();
  causes.front().what += cat("; besides, ", files);
  return Status(std::move(causes));
}

}  // namespace

const char* name(Bound bound) {
  if (bound == Bound::kExact) return "exact";
  return bound == Bound::kAtMost ? "at-most" : "at-least";
}

const char* words(Bound bound) {
  if (bound == Bound::kExact) return "";
  return bound == Bound::kAtMost ? "at most " : "at least ";
}

int64_t ShmNeed::dev_shm_bytes() const {
  return sum<&Consumer::bytes>(dev_shm);
}

int64_t ShmNeed::dev_shm_inodes() const {
  return sum<&Consumer::inodes>(dev_shm);
}

int64_t ShmNeed::memory_bytes() const {
  return dev_shm_bytes() + sum<&Consumer::bytes>(memory);
}

int64_t ShmNeed::largest_file_bytes() const {
  int64_t largest = 0;
  for (const Consumer& file : dev_shm) {
    const int64_t files = std::max<int64_t>(file.inodes, 1);
    largest = std::max(largest, (file.bytes + files - 1) / files);
  }
  for (const Consumer& memfd : memory) {  // an entry without inodes is private memory
    if (memfd.inodes > 0)
      largest = std::max(largest, (memfd.bytes + memfd.inodes - 1) / memfd.inodes);
  }
  return largest;
}

Status check_budget(const ShmNeed& need, const HostFacts& facts, const BudgetOptions& options) {
  return judge(need, facts, options, Deciding::kArithmetic);
}

Status check_before_reserving(const ShmNeed& need, const HostFacts& facts,
                              const BudgetOptions& options) {
  return judge(need, facts, options,
               need.bound == Bound::kAtLeast ? Deciding::kReservation : Deciding::kArithmetic);
}

}  // namespace shoal
