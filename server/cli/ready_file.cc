#include "server/cli/ready_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/text_values.h"
#include "server/cli/command_io.h"

namespace shoal {

namespace {

constexpr std::string_view kMark = "READY ";

Status unusable(const std::string& path, std::string_view why, int error = 0) {
  return Status::error(Code::kInvalidArgument, cat("--ready-file ", path, " ", why), error);
}

/// Whether it is a file that an earlier run may have left, or an empty one that was made for us.
bool is_ours(const Fd& file) {
  char begin[kMark.size()];
  const ssize_t size = ::read(file.get(), begin, sizeof begin);
  return size == 0 || (size > 0 && std::string_view(begin, static_cast<size_t>(size)) == kMark);
}

/// A new file under this name, which nobody else has chosen.
Fd make_file(const std::string& path) {
  ::unlink(path.c_str());
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
}

/// The file under this name that an earlier run may have left. Not valid: there is none.
Result<Fd> find_stale(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return Fd();
    return unusable(path, "cannot be made; name a file in a folder that exists", errno);
  }
  // A device or a link, such as /dev/stdout, must not be removed.
  if (!S_ISREG(found.st_mode))
    return unusable(path, "is there already and is no regular file; name another one");
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!is_ours(file))
    return unusable(path, "is there already and is not of Shoal; remove it, or name another one");
  return file;
}

Status remove_stale(const std::string& path, const Fd& file) {
  // The server that has made it keeps a lock on it.
  if (::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return unusable(path, "is that of another server, which is ready; name another one");
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return unusable(path, "is of an earlier run and cannot be removed", errno);
}

/// Proves that files can be made beside it.
Status try_folder(const std::string& path, const std::string& new_path) {
  const Fd trial = make_file(new_path);
  if (!trial.valid())
    return unusable(path, "cannot be made; name a file in a folder that may be written", errno);
  ::unlink(new_path.c_str());
  return {};
}

}  // namespace

std::string ready_value(const std::string& value) {
  const bool plain = value.find_first_of(" \"") == std::string::npos && printable(value) == value;
  return plain ? value : cat('"', json_escape(value), '"');
}

ReadyFile::ReadyFile(std::string path)
    : path_(std::move(path)), new_path_(cat(path_, ".", ::getpid())) {}

Result<std::unique_ptr<ReadyFile>> ReadyFile::prepare(const std::string& path) {
  std::unique_ptr<ReadyFile> file(new ReadyFile(path));
  if (path.empty()) return file;
  SHOAL_ASSIGN_OR_RETURN(const Fd stale, find_stale(path));
  if (stale.valid()) SHOAL_RETURN_IF_ERROR(remove_stale(path, stale));
  SHOAL_RETURN_IF_ERROR(try_folder(path, file->new_path_));
  return file;
}

Status ReadyFile::check(const std::string& path) {
  if (path.empty()) return {};
  SHOAL_RETURN_IF_ERROR(find_stale(path).status());
  return try_folder(path, ReadyFile(path).new_path_);
}

Status ReadyFile::write(std::string_view text) {
  if (path_.empty()) return {};
  const std::string what = cat("write --ready-file ", path_);
  Fd file = make_file(new_path_);
  if (!file.valid()) return Status::error(Code::kUnavailable, what, errno);
  const Status written = write_all(file.get(), text, what);
  if (!written.ok()) {
    ::unlink(new_path_.c_str());
    return written.because_of(Code::kUnavailable, what);
  }
  (void)::flock(file.get(), LOCK_EX | LOCK_NB);
  file_ = std::move(file);
  written_ = true;
  if (::rename(new_path_.c_str(), path_.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(new_path_.c_str());
  written_ = false;
  return Status::error(Code::kUnavailable, what, error);
}

void ReadyFile::remove() {
  if (!written_.exchange(false)) return;
  struct stat own {
  }, there{};
  const bool is_own = ::fstat(file_.get(), &own) == 0 && ::stat(path_.c_str(), &there) == 0 &&
                      own.st_dev == there.st_dev && own.st_ino == there.st_ino;
  if (is_own) ::unlink(path_.c_str());
}

}  // namespace shoal
