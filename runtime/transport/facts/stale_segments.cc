#include "runtime/transport/facts/stale_segments.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <set>
#include <signal.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// NCCL names its files by mkstemp("/dev/shm/nccl-XXXXXX") (shmutils.cc, ncclShmOpen), which fills
/// in letters and digits.
bool is_nccl_name(std::string_view name) {
  constexpr std::string_view kPrefix = "nccl-";
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + 6) return false;
  return std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0; });
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// True for ShmSegment's .shoal-PID-N and the facts' .shoal-probe-PID-N, which are made if a file
/// system has no O_TMPFILE. The pattern is strict, because a name that this program never makes
/// belongs to a file of somebody else.
bool is_own_name(std::string_view name) {
  for (const std::string_view prefix : {".shoal-probe-", ".shoal-"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view numbers = name.substr(prefix.size());
    const size_t dash = numbers.find('-');
    return dash != std::string_view::npos && is_number(numbers.substr(0, dash)) &&
           is_number(numbers.substr(dash + 1));
  }
  return false;
}

bool is_segment_name(std::string_view name) {
  return is_own_name(name) || is_nccl_name(name);
}

struct DirCloser {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, DirCloser>;

Result<Dir> open_directory(const std::string& path) {
  Dir dir(::opendir(path.c_str()));
  if (dir) return dir;
  const int error = errno;
  const Code code = error == EACCES || error == EPERM ? Code::kPermissionDenied : Code::kNotFound;
  return Status::error(code, cat("the directory ", path, " cannot be read"), error);
}

std::vector<std::string> segment_names(DIR* dir) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    // DT_UNKNOWN: the file system does not report the type; a later fstatat does.
    const bool regular = entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN;
    if (regular && is_segment_name(entry->d_name)) names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Between the moment when open(O_CREAT) makes a name and the moment when the kernel counts its
/// opener, the file seems to be unused. It is empty then, so an empty file counts as unused only
/// after its creator has had ample time.
bool may_be_being_created(const struct stat& info) {
  constexpr time_t kAmpleSeconds = 5;
  if (info.st_size != 0 || info.st_blocks != 0) return false;
  return info.st_mtim.tv_sec + kAmpleSeconds > ::time(nullptr);
}

/// Returns 0 if the lease is granted, otherwise errno. The kernel announces by a signal that a
/// lease is broken. It is set to SIGURG, which is ignored by default, because SIGIO would end this
/// process.
int take_write_lease(int fd) {
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return errno;
  return ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0 ? 0 : errno;
}

/// Whether the file may be one that NCCL has left: shm_open and mkstemp give it mode 0600, and NCCL
/// knows a few sizes only. When it finds no room it leaves an empty file.
bool may_be_nccls(const struct stat& info, const NcclSize& is_nccl_size) {
  return (info.st_mode & 07777) == 0600 &&
         (info.st_size == 0 || (is_nccl_size && is_nccl_size(info.st_size)));
}

/// Whether a killed Shoal may have left the file. It has a name only until the next call unlinks
/// it, and nothing is in it by then.
bool may_be_ours(const struct stat& info) {
  return (info.st_mode & 07777) == 0600 && info.st_size == 0;
}

/// Somebody's own file, which only has a name like ours or NCCL's.
bool is_foreign(const std::string& name, const struct stat& info, const NcclSize& is_nccl_size) {
  return is_nccl_name(name) ? !may_be_nccls(info, is_nccl_size) : !may_be_ours(info);
}

LeftFile left_file(const std::string& path, const struct stat& info, LeftFileState state) {
  return {path, int64_t{info.st_blocks} * 512, info.st_uid, state};
}

/// What a sweep does with a file.
enum class Treat { kIgnore, kKeep, kRemoveIfStale };
using Judge = std::function<Treat(const std::string& name, const struct stat&)>;

/// makers_are_gone: as for LeftFileLease::ask.
Result<SweepResult> sweep(const std::string& path, const Judge& judge, bool makers_are_gone) {
  SHOAL_ASSIGN_OR_RETURN(const Dir dir, open_directory(path));
  const int directory = ::dirfd(dir.get());
  SweepResult result;
  for (const std::string& name : segment_names(dir.get())) {
    struct stat info = {};
    if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const Treat treat = judge(name, info);
    if (treat == Treat::kKeep)
      result.kept.push_back(left_file(cat(path, "/", name), info, LeftFileState::kUnknown));
    if (treat != Treat::kRemoveIfStale) continue;
    LeftFileLease lease = LeftFileLease::ask(directory, name, makers_are_gone);
    if (!lease.is_candidate()) continue;
    if (lease.state() == LeftFileState::kStale && lease.unlink_name()) {
      result.removed.push_back(left_file(cat(path, "/", name), info, LeftFileState::kStale));
      result.bytes += lease.bytes();
    } else {
      result.kept.push_back(
          {cat(path, "/", name), lease.bytes(), lease.uid(),
           lease.state() == LeftFileState::kStale ? LeftFileState::kUnknown : lease.state()});
    }
  }
  return result;
}

}  // namespace

LeftFileLease LeftFileLease::ask(int directory, const std::string& name, bool maker_is_gone) {
  LeftFileLease lease;
  lease.directory_ = directory;
  lease.name_ = name;
  struct stat named = {};
  if (::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISREG(named.st_mode))
    return lease;
  lease.candidate_ = true;
  lease.bytes_ = int64_t{named.st_blocks} * 512;
  lease.uid_ = named.st_uid;
  if (named.st_uid != ::geteuid()) {
    lease.state_ = LeftFileState::kOtherUser;
    return lease;
  }
  // With O_NONBLOCK the open fails at once if somebody else (another sweep) holds a lease.
  Fd file(::openat(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == EWOULDBLOCK || errno == ETXTBSY) lease.state_ = LeftFileState::kInUse;
    if (errno == ENOENT) lease.candidate_ = false;
    return lease;
  }
  struct stat opened = {};
  if (::fstat(file.get(), &opened) != 0 || !same_file(named, opened)) return lease;
  // Somebody may keep the file by its other name. That is not ours to judge, and no byte would be
  // freed.
  if (opened.st_nlink != 1) return lease;
  if (!maker_is_gone && may_be_being_created(opened)) return lease;
  const int refused = take_write_lease(file.get());
  // EINVAL: this file system has no leases; EACCES: the file is not ours after all. After these and
  // other errors the state is unknown.
  if (refused == EAGAIN) lease.state_ = LeftFileState::kInUse;
  if (refused != 0) return lease;
  lease.state_ = LeftFileState::kStale;
  lease.file_ = std::move(file);
  return lease;
}

bool LeftFileLease::unlink_name() {
  struct stat leased = {};
  struct stat named = {};
  if (!file_.valid() || ::fstat(file_.get(), &leased) != 0 || leased.st_nlink != 1) return false;
  // The lease was broken in the meantime: somebody waits to open the file, and means to use it.
  if (::fcntl(file_.get(), F_GETLEASE) != F_WRLCK) return false;
  // A name that mkstemp made becomes another file's only after its own user has unlinked it. What
  // is left of that race is the time between the next two calls.
  if (::fstatat(directory_, name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      !same_file(named, leased))
    return false;
  const bool done = ::unlinkat(directory_, name_.c_str(), 0) == 0;
  file_.reset();
  return done;
}

std::vector<LeftFile> find_left_files(const std::string& directory, const NcclSize& is_nccl_size) {
  std::vector<LeftFile> files;
  const auto dir = open_directory(directory);
  if (!dir.ok()) return files;
  for (const std::string& name : segment_names(dir->get())) {
    struct stat info = {};
    if (::fstatat(::dirfd(dir->get()), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(info.st_mode) && is_foreign(name, info, is_nccl_size)) {
      files.push_back(left_file(cat(directory, "/", name), info, LeftFileState::kUnknown));
      continue;
    }
    const LeftFileLease lease = LeftFileLease::ask(::dirfd(dir->get()), name);
    if (lease.is_candidate())
      files.push_back({cat(directory, "/", name), lease.bytes(), lease.uid(), lease.state()});
  }
  return files;
}

Result<SweepResult> remove_stale(const std::string& directory, const NcclSize& is_nccl_size) {
  const auto judge = [&is_nccl_size](const std::string& name, const struct stat& info) {
    if (!S_ISREG(info.st_mode)) return Treat::kIgnore;
    return is_foreign(name, info, is_nccl_size) ? Treat::kKeep : Treat::kRemoveIfStale;
  };
  return sweep(directory, judge, false);
}

Result<SweepResult> remove_recorded(const std::string& directory,
                                    const std::vector<SegmentId>& ids) {
  const auto recorded = [&ids](const std::string&, const struct stat& info) {
    return std::find(ids.begin(), ids.end(), SegmentId{info.st_dev, info.st_ino}) != ids.end()
               ? Treat::kRemoveIfStale
               : Treat::kIgnore;
  };
  return sweep(directory, recorded, true);
}

SweepResult remove_named_in(const std::string& directory, std::string_view text) {
  SweepResult result;
  const auto dir = open_directory(directory);
  if (!dir.ok()) return result;
  const std::string prefix = cat(directory, "/nccl-");
  std::set<std::string> names;
  for (size_t at = text.find(prefix); at != std::string_view::npos;
       at = text.find(prefix, at + 1)) {
    const std::string_view name =
        text.substr(at + directory.size() + 1, prefix.size() - directory.size() - 1 + 6);
    if (is_nccl_name(name)) names.emplace(name);
  }
  for (const std::string& name : names) {
    LeftFileLease lease = LeftFileLease::ask(::dirfd(dir->get()), name, true);
    if (!lease.unlink_name()) continue;
    result.removed.push_back(
        {cat(directory, "/", name), lease.bytes(), lease.uid(), LeftFileState::kStale});
    result.bytes += lease.bytes();
  }
  return result;
}

}  // namespace shoal
