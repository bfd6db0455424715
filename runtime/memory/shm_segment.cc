#include "runtime/memory/shm_segment.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/quantity.h"
#include "runtime/memory/populate.h"

namespace shoal {
namespace {

Code code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG:
      return Code::kResourceExhausted;
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSYS:
      return Code::kUnimplemented;
    default:
      return Code::kInternal;
  }
}

constexpr int kMostNames = 1000;

/// Creates a file under a name that is not in use. A first choice may be, because in a container
/// the pid may be the same at each start, and an earlier process of this pid may have been killed
/// before it could unlink its file.
Result<Fd> open_named(const std::string& directory, std::string* name) {
  static std::atomic<uint64_t> counter{0};
  int error = EEXIST;
  for (int i = 0; i < kMostNames && error == EEXIST; ++i) {
    *name = cat(directory, "/.shoal-", ::getpid(), "-", counter.fetch_add(1));
    Fd fd(::open(name->c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (fd.valid()) return fd;
    error = errno;
  }
  return Status::error(code_of(error), cat("create ", *name), error);
}

/// Opens a file without a name. On a file system without O_TMPFILE (overlayfs before Linux 6.x,
/// some FUSE ones) it has a name until it is unlinked right after. A process that is killed between
/// the two calls leaves an empty file, which takes no bytes.
Result<Fd> open_unnamed(const std::string& directory) {
  Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  int error = errno;
  if (error != EOPNOTSUPP && error != EISDIR && error != EINVAL) {
    return Status::error(code_of(error), cat("open an unnamed file in ", directory), error);
  }
  std::string name;
  SHOAL_ASSIGN_OR_RETURN(fd, open_named(directory, &name));
  if (::unlink(name.c_str()) != 0) {
    error = errno;
    return Status::error(code_of(error), cat("unlink ", name), error);
  }
  return fd;
}

/// ": 1048576 B (1.0 MiB) free", which is what an unprivileged process may use. Empty if the mount
/// reports no size, as that of a memfd does.
std::string free_text(int fd) {
  struct statvfs facts;
  if (::fstatvfs(fd, &facts) != 0) return ": free bytes unknown";
  if (facts.f_blocks == 0) return "";
  return cat(": ", bytes_text(static_cast<int64_t>(facts.f_bavail * facts.f_frsize)), " free");
}

/// Makes the file `bytes` long with every block allocated. ftruncate alone would make it sparse,
/// and a missing block would only show as SIGBUS at the first store. place: for messages, for
/// example "/dev/shm".
Status reserve(int fd, size_t bytes, const std::string& place) {
  // Beyond this limit the kernel sends SIGXFSZ, which ends the process, before it returns EFBIG.
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return Status::error(Code::kResourceExhausted,
                         cat("shared segment of ", bytes_text(static_cast<int64_t>(bytes)),
                             ": the file size limit is ",
                             bytes_text(static_cast<int64_t>(limit.rlim_cur)), " (ulimit -f)"));
  }
  int error;
  do {
    error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return {};
  return Status::error(
      code_of(error),
      cat("fallocate ", bytes_text(static_cast<int64_t>(bytes)), " in ", place, free_text(fd)),
      error);
}

Status check_size(size_t bytes) {
  if (bytes > 0 && bytes <= static_cast<size_t>(std::numeric_limits<off_t>::max())) return {};
  return Status::error(Code::kInvalidArgument, cat("shared segment of ", bytes, " bytes"));
}

}  // namespace

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<ShmSegment> ShmSegment::create(size_t bytes, const std::string& directory) {
  SHOAL_RETURN_IF_ERROR(check_size(bytes));
  SHOAL_ASSIGN_OR_RETURN(Fd fd, open_unnamed(directory));
  SHOAL_RETURN_IF_ERROR(reserve(fd.get(), bytes, directory));
  return map(std::move(fd), bytes);
}

Result<ShmSegment> ShmSegment::create_memfd(size_t bytes) {
  SHOAL_RETURN_IF_ERROR(check_size(bytes));
  Fd fd(::memfd_create("shoal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int error = errno;
  if (!fd.valid()) return Status::error(code_of(error), "create a memfd", error);
  SHOAL_RETURN_IF_ERROR(reserve(fd.get(), bytes, "a memfd"));
  SHOAL_ASSIGN_OR_RETURN(ShmSegment segment, map(std::move(fd), bytes));
  if (::fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    error = errno;
    return Status::error(code_of(error), cat("seal a memfd of ", bytes, " bytes"), error);
  }
  return segment;
}

Result<ShmSegment> ShmSegment::open(int fd, size_t bytes) {
  struct stat facts;
  if (::fstat(fd, &facts) != 0) {
    const int error = errno;
    return Status::error(Code::kInvalidArgument, cat("shared segment: descriptor ", fd), error);
  }
  if (!S_ISREG(facts.st_mode) || bytes == 0 || static_cast<uint64_t>(facts.st_size) < bytes) {
    return Status::error(Code::kInvalidArgument,
                         cat("shared segment: descriptor ", fd, " has ", facts.st_size, " bytes, ",
                             bytes, " are to be mapped"));
  }
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  const int error = errno;
  if (!copy.valid())
    return Status::error(code_of(error), cat("shared segment: duplicate descriptor ", fd), error);
  return map(std::move(copy), bytes);
}

Status ShmSegment::clear() {
  static constexpr std::array<std::byte, size_t{1} << 16> kZeros{};
  for (size_t at = 0; at < size_;) {
    const size_t piece = std::min(kZeros.size(), size_ - at);
    const ssize_t written = ::pwrite(fd_.get(), kZeros.data(), piece, static_cast<off_t>(at));
    const int error = errno;
    if (written < 0 && error == EINTR) continue;
    if (written <= 0) {
      return Status::error(code_of(error),
                           cat("write zeros at ", at, " of ", size_, " bytes of shared memory"),
                           written < 0 ? error : 0);
    }
    at += static_cast<size_t>(written);
  }
  return {};
}

Result<ShmSegment> ShmSegment::map(Fd fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  const int error = errno;
  if (data == MAP_FAILED)
    return Status::error(code_of(error),
                         cat("map ", bytes_text(static_cast<int64_t>(bytes)), " of shared memory"),
                         error);
  (void)::madvise(data, bytes, MADV_DONTDUMP);
  ShmSegment segment(std::move(fd), static_cast<std::byte*>(data), bytes);
  SHOAL_RETURN_IF_ERROR(populate(segment.data_, bytes));
  return segment;
}

}  // namespace shoal
