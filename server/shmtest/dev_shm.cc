#include "server/shmtest/dev_shm.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <filesystem>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "server/shmtest/os_failure.h"
#include "server/shmtest/own_dev.h"

namespace shoal::shmtest {
namespace {

constexpr const char* kPath = "/dev/shm";
constexpr unsigned long kMountFlags = MS_NOSUID | MS_NODEV;

std::string tmpfs_options(const Condition& condition) {
  std::string options = condition.other_user ? "mode=0700" : "mode=1777";
  // Any user other than the one that runs the command.
  if (condition.other_user) options += cat(",uid=", ::geteuid() == 65534 ? 65533 : 65534);
  if (condition.size_bytes > 0) options += cat(",size=", condition.size_bytes);
  if (condition.inodes > 0) options += cat(",nr_inodes=", condition.inodes);
  return options;
}

/// Creates files such as killed processes of various programs leave behind. If there is no room for
/// their data the files stay empty.
Status place_stale_files() {
  const char* names[] = {"nccl-k3Jx9Q", "nccl-0aVtZr", ".shoal-4711-0", "psm_1f3c9a2e",
                         "sem.mp-a1b2c3d4"};
  for (const char* name : names) {
    const Fd file(
        ::open(cat(kPath, "/", name).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    if (!file.valid()) return failed(cat("place the stale file ", name));
    if (::ftruncate(file.get(), 4096) != 0) return failed(cat("size the stale file ", name));
    [[maybe_unused]] const int error = ::posix_fallocate(file.get(), 0, 4096);
  }
  return {};
}

Status mount_tmpfs(const Condition& condition) {
  const unsigned long flags = kMountFlags | (condition.noexec ? MS_NOEXEC : 0);
  if (::mount("shm", kPath, "tmpfs", flags, tmpfs_options(condition).c_str()) != 0) {
    return failed(condition.other_user
                      ? "mount a tmpfs of another user (a user namespace of ours has one user only)"
                      : cat("mount a tmpfs with ", tmpfs_options(condition)));
  }
  if (condition.stale_files) SHOAL_RETURN_IF_ERROR(place_stale_files());
  if (condition.read_only &&
      ::mount("shm", kPath, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, nullptr) != 0) {
    return failed("remount read-only");
  }
  return {};
}

bool on_disk(const char* folder) {
  struct statfs info {};
  return ::statfs(folder, &info) == 0 && info.f_type != TMPFS_MAGIC && info.f_type != RAMFS_MAGIC &&
         ::access(folder, W_OK) == 0;
}

Status mount_disk_folder(std::string& disk_folder) {
  const char* wanted = std::getenv("TMPDIR");
  for (const char* parent : {wanted, "/var/tmp", "/tmp", "."}) {
    if (parent == nullptr || !on_disk(parent)) continue;
    std::string folder = cat(std::filesystem::absolute(parent).string(), "/shoal-shmtest-XXXXXX");
    if (::mkdtemp(folder.data()) == nullptr) continue;
    disk_folder = folder;
    if (::chmod(folder.c_str(), 01777) != 0) return failed(cat("chmod ", folder));
    if (::mount(folder.c_str(), kPath, nullptr, MS_BIND, nullptr) != 0)
      return failed("bind a directory of a disk");
    return {};
  }
  return Status::error(Code::kFailedPrecondition,
                       "no writable directory on a disk: all of $TMPDIR, /var/tmp, /tmp are tmpfs");
}

/// Calls visit(name, stat) for everything below the directory, and closes the directory.
template <typename Visit>
void walk(Fd folder, const std::string& prefix, const Visit& visit) {
  DIR* stream = ::fdopendir(folder.get());
  if (stream == nullptr) return;
  const int fd = folder.release();
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    struct stat info {};
    if (name == "." || name == ".." || ::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    visit(prefix + name, info);
    if (!S_ISDIR(info.st_mode)) continue;
    Fd below(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (below.valid()) walk(std::move(below), cat(prefix, name, "/"), visit);
  }
  ::closedir(stream);
}

/// Opens the directory again, because the position of a directory stream belongs to the open file.
Fd reopened(const Fd& folder) {
  return Fd(folder.valid() ? ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
}

uint64_t allocated(const struct stat& info) {
  return S_ISDIR(info.st_mode) ? 0 : static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace

Status mount_dev_shm(const Condition& condition, std::string& disk_folder) {
  if (condition.shm == ShmKind::kHost) return {};
  if (condition.shm == ShmKind::kMissing) return mount_own_dev(/*with_shm=*/false);
  if (::access(kPath, F_OK) != 0) SHOAL_RETURN_IF_ERROR(mount_own_dev(/*with_shm=*/true));
  if (condition.shm == ShmKind::kTmpfs) return mount_tmpfs(condition);
  SHOAL_RETURN_IF_ERROR(mount_disk_folder(disk_folder));
  return condition.stale_files ? place_stale_files() : Status();
}

void remove_disk_folder(const std::string& disk_folder) {
  std::error_code ignored;
  if (!disk_folder.empty()) std::filesystem::remove_all(disk_folder, ignored);
}

DevShmWatch::DevShmWatch(const Condition& condition)
    : folder_(::open(kPath, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  struct statfs info {};
  counts_files_ = condition.shm == ShmKind::kDisk || !folder_.valid() ||
                  ::fstatfs(folder_.get(), &info) != 0 || info.f_type != TMPFS_MAGIC ||
                  info.f_blocks == 0;
  walk(reopened(folder_), "",
       [&](const std::string& name, const struct stat&) { names_before_.insert(name); });
  bytes_before_ = used_bytes();
}

uint64_t DevShmWatch::used_bytes() const {
  uint64_t bytes = 0;
  struct statvfs info {};
  if (counts_files_) {
    walk(reopened(folder_), "",
         [&](const std::string&, const struct stat& file) { bytes += allocated(file); });
  } else if (::fstatvfs(folder_.get(), &info) == 0) {
    bytes = (info.f_blocks - info.f_bfree) * info.f_frsize;
  }
  struct stat filler {};
  if (filler_.valid() && ::fstat(filler_.get(), &filler) == 0)
    bytes -= std::min(bytes, allocated(filler));
  return bytes;
}

Status DevShmWatch::fill() {
  if (!filler_.valid())
    filler_.reset(::openat(folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!filler_.valid()) return failed("open what fills /dev/shm");
  struct stat now {};
  struct statvfs space {};
  if (::fstat(filler_.get(), &now) != 0) return failed("look at what fills /dev/shm");
  off_t end = now.st_size;
  // A failed fallocate gives back everything it took, so halve the size until single pages fail.
  if (::fstatvfs(folder_.get(), &space) != 0) return failed("look at /dev/shm");
  const auto page = static_cast<off_t>(space.f_frsize);
  for (off_t chunk = std::max(page, static_cast<off_t>(space.f_bfree * space.f_frsize));
       chunk >= page;) {
    const int error = ::posix_fallocate(filler_.get(), end, chunk);
    if (error == 0) end += chunk;
    if (error != 0 && error != EINTR)
      chunk = chunk == page ? 0 : std::max(page, chunk / 2 / page * page);
  }
  return {};
}

void DevShmWatch::sample(bool at_work) {
  const uint64_t used = used_bytes();
  const uint64_t more = used > bytes_before_ ? used - bytes_before_ : 0;
  if (at_work || more > 0) peak_bytes_ = std::max(peak_bytes_.value_or(0), more);
}

std::vector<LeftFile> DevShmWatch::left() const {
  std::vector<LeftFile> files;
  walk(reopened(folder_), "", [&](const std::string& name, const struct stat& info) {
    if (!names_before_.contains(name)) files.push_back({name, allocated(info)});
  });
  std::sort(files.begin(), files.end(),
            [](const LeftFile& a, const LeftFile& b) { return a.name < b.name; });
  return files;
}

}  // namespace shoal::shmtest
