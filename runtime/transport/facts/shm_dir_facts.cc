#include "runtime/transport/facts/shm_dir_facts.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fcntl.h>
#include <linux/magic.h>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/fd.h"
#include "runtime/transport/facts/child_probe.h"
#include "runtime/transport/facts/mount_table.h"

namespace shoal {
namespace {

constexpr int64_t kSaturatedBytes = int64_t{1} << 60;
/// If a limit leaves twice the need and this much besides, it does no harm that other processes
/// grow meanwhile.
constexpr int64_t kSafeDistanceBytes = 64 << 20;
/// The kernel zeroes a tmpfs at gigabytes per second, but reclaiming memory near a limit takes
/// longer.
constexpr int64_t kProbeMs = 1000;

int64_t times(uint64_t count, uint64_t unit) {
  const auto product = static_cast<unsigned __int128>(count) * unit;
  return product > kSaturatedBytes ? kSaturatedBytes : static_cast<int64_t>(product);
}

std::string resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
  return real == nullptr ? path : std::string(real.get());
}

/// Opens an unnamed file as ShmSegment::create does. If that fails, errno is set.
Fd open_unnamed(const std::string& directory) {
  Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid() || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  static std::atomic<uint64_t> counter{0};
  const std::string name = cat(directory, "/.shoal-probe-", ::getpid(), "-", counter.fetch_add(1));
  fd.reset(::open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.valid() && ::unlink(name.c_str()) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

/// Allocates the bytes for real and returns the errno; 0: it worked. They are free again when this
/// returns.
int allocate_and_release(const std::string& directory, int64_t bytes) {
  const Fd fd = open_unnamed(directory);
  if (!fd.valid()) return errno;
  int error;
  do {
    error = ::posix_fallocate(fd.get(), 0, bytes);
  } while (error == EINTR);
  return error;
}

void allocate_in_child(int64_t bytes, ShmDirFacts* dir) {
  const ChildAnswer answer = ask_child(
      [&] {
        // If memory runs out now, the kernel kills this process first.
        if (const Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
            score.valid()) {
          [[maybe_unused]] const ssize_t wrote = ::write(score.get(), "1000", 4);
        }
        return allocate_and_release(dir->path, bytes);
      },
      kProbeMs);
  using End = ChildAnswer::End;
  if (answer.end == End::kNotStarted) {
    dir->probe_note = cat("not tried: no child for it (errno ", answer.value, ")");
    return;
  }
  dir->probed_bytes = bytes;
  if (answer.end == End::kAnswered) dir->probe_errno = answer.value;
  if (answer.end == End::kLate) {
    dir->probe_errno = ETIMEDOUT;
    dir->probe_note = cat("the try had no answer within ", kProbeMs, " ms");
  }
  if (answer.end == End::kKilled) {
    dir->probe_errno = ENOMEM;
    dir->probe_note = cat("the try was killed by signal ", answer.value, ": the memory limit");
  }
}

/// The least that any memory limit leaves; -1: no limit is known.
int64_t memory_left(const HostFacts& facts) {
  const int64_t cgroup = facts.cgroup.available_bytes(), machine = facts.memory_available_bytes;
  if (machine <= 0) return cgroup;
  return cgroup < 0 ? machine : std::min(cgroup, machine);
}

/// Why an allocation would show nothing new or do harm; empty: it may be tried.
std::string against_probe(int64_t bytes, const HostFacts& facts) {
  const ShmDirFacts& dir = facts.dev_shm;
  if (!dir.exists || dir.open_errno != 0) return "not tried: no file can be made";
  if (dir.size_bytes > 0 && bytes > dir.free_bytes) return "not tried: more than is free";
  if (facts.limits.fsize_bytes >= 0 && bytes > facts.limits.fsize_bytes)
    return "not tried: the file size limit";
  const int64_t left = memory_left(facts);
  if (left >= 0 && bytes > left) return "not tried: more memory than is left";
  return "";
}

}  // namespace

ShmDirFacts shm_dir_facts(const SystemPaths& paths, const std::string& directory) {
  ShmDirFacts facts;
  facts.path = directory;
  struct stat entry;
  if (::stat(directory.c_str(), &entry) != 0) {
    facts.open_errno = errno;
    facts.exists = errno != ENOENT && errno != ENOTDIR && errno != ELOOP;
    facts.occupied = !facts.exists && ::lstat(directory.c_str(), &entry) == 0;
    return facts;
  }
  facts.exists = S_ISDIR(entry.st_mode);
  facts.occupied = !facts.exists;
  facts.device = entry.st_dev;
  const std::vector<Mount> mounts = parse_mountinfo(text_of(paths.root + "/proc/self/mountinfo"));
  struct statfs kind;
  if (const Mount* mount = find_mount(mounts, resolved(directory), entry.st_dev)) {
    facts.fs_type = mount->fs_type;
    facts.mount_options =
        cat(mount->options, mount->super_options.empty() ? "" : ",", mount->super_options);
  } else if (::statfs(directory.c_str(), &kind) == 0 && kind.f_type == TMPFS_MAGIC) {
    facts.fs_type = "tmpfs";
  }
  struct statvfs space;
  if (::statvfs(directory.c_str(), &space) == 0) {
    facts.size_bytes = times(space.f_blocks, space.f_frsize);
    facts.free_bytes = times(space.f_bavail, space.f_frsize);
    facts.total_inodes = times(space.f_files, 1);
    facts.free_inodes = times(space.f_favail, 1);
  }
  if (!open_unnamed(directory).valid()) facts.open_errno = errno;
  return facts;
}

void probe_shm_dir(int64_t bytes, HostFacts* facts) {
  ShmDirFacts& dir = facts->dev_shm;
  dir.probe_note = against_probe(bytes, *facts);
  if (!dir.probe_note.empty()) return;
  const int64_t left = memory_left(*facts);
  if (left < 0 || left >= 2 * bytes + kSafeDistanceBytes) {
    dir.probed_bytes = bytes;
    dir.probe_errno = allocate_and_release(dir.path, bytes);
    return;
  }
  const std::vector<CgroupLevel>& levels = facts->cgroup.levels;
  if (std::any_of(levels.begin(), levels.end(),
                  [](const CgroupLevel& level) { return level.oom_group; })) {
    dir.probe_note =
        "not tried: near the memory limit, and a kill would take the whole group (memory.oom.group)";
    return;
  }
  allocate_in_child(bytes, &dir);
}

int memfd_error() {
  // The flags of the memfd rung, because the answer depends on them: with vm.memfd_noexec=2 the
  // kernel refuses a memfd without MFD_NOEXEC_SEAL.
  const Fd fd(::memfd_create("shoal-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno;
  return ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 ? 0 : errno;
}

}  // namespace shoal
