#include "models/held_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/control/descriptors.h"

namespace shoal {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{64} << 10;

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/// Each step is a bijection of the state for any word, and of the word for any state. A difference
/// in one word therefore always shows.
uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9e3779b97f4a7c15;
  return state ^ (state >> 32);
}

/// Returns how many bytes there are at the offset, up to `size`.
Result<size_t> read_at(int fd, uint64_t offset, char* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, data + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::error(Code::kDataLoss, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

/// Adds the bytes at an offset to the state. A file that ends early gives another state.
Result<uint64_t> mix_chunk(int fd, uint64_t offset, std::vector<uint64_t>& buffer, uint64_t state) {
  std::fill(buffer.begin(), buffer.end(), 0);
  SHOAL_ASSIGN_OR_RETURN(const size_t done,
                         read_at(fd, offset, reinterpret_cast<char*>(buffer.data()), kChunkBytes));
  for (const uint64_t word : buffer) state = mix(state, word);
  return mix(state, done);
}

}  // namespace

Result<HeldFile> HeldFile::open(const std::string& path) {
  // O_NONBLOCK: if the path is a FIFO, open must not block before fstat can find that out.
  const Fd low(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!low.valid()) return open_failure(path, errno);
  Fd fd(::fcntl(low.get(), F_DUPFD_CLOEXEC, kFirstWorkFd));
  // EINVAL: the limit of descriptors is below the first number asked for.
  if (!fd.valid()) return open_failure(path, errno == EINVAL ? EMFILE : errno);
  struct stat seen {};
  if (::fstat(fd.get(), &seen) != 0)
    return Status::error(Code::kInternal, cat("stat ", path), errno);
  if (!S_ISREG(seen.st_mode))
    return Status::error(Code::kInvalidArgument, cat(path, " is not a regular file"));
  return HeldFile(path, std::move(fd), seen);
}

Result<std::string> HeldFile::head(uint64_t most) const {
  std::string text(std::min(most, bytes_), '\0');
  const Result<size_t> done = read_at(fd_.get(), 0, text.data(), text.size());
  if (!done.ok()) return done.status().while_doing(cat("read ", path_));
  text.resize(*done);
  return text;
}

Result<uint64_t> HeldFile::fingerprint() const {
  const uint64_t all = (bytes() + kChunkBytes - 1) / kChunkBytes;
  const auto count = std::min(all, static_cast<uint64_t>(std::max(chunks_, 2)));
  std::vector<uint64_t> buffer(kChunkBytes / sizeof(uint64_t));
  uint64_t state = bytes();
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t chunk = count < 2 ? 0 : i * (all - 1) / (count - 1);
    SHOAL_ASSIGN_OR_RETURN(state, mix_chunk(fd_.get(), chunk * kChunkBytes, buffer, state));
  }
  return state;
}

Status HeldFile::take_fingerprint(int chunks) {
  chunks_ = chunks;
  struct stat now {};
  if (::fstat(fd_.get(), &now) != 0 || now.st_size != seen_.st_size ||
      !same_time(now.st_mtim, seen_.st_mtim)) {
    return Status::error(Code::kDataLoss, cat(path_, " was changed in place while it was opened"))
        .blamed_on(Fault::kModelChanged);
  }
  const Result<uint64_t> taken = fingerprint();
  if (!taken.ok()) return taken.status().while_doing(cat("read ", path_));
  fingerprint_ = *taken;
  return {};
}

HeldFile::Change HeldFile::look(bool always) {
  struct stat now {};
  if (::fstat(fd_.get(), &now) != 0 || now.st_size != seen_.st_size) return Change::kContents;
  const bool written = !same_time(now.st_mtim, seen_.st_mtim);
  const bool changed = !same_time(now.st_ctim, seen_.st_ctim);
  if (!written && !changed && !always) return Change::kNone;
  const Result<uint64_t> taken = fingerprint();
  if (!taken.ok() || *taken != fingerprint_) return Change::kContents;
  // A name that was given to the file or taken from it changes ctime too, and says nothing about
  // its contents.
  const bool renamed = now.st_nlink != seen_.st_nlink;
  seen_ = now;
  if (written) return Change::kWritten;
  return changed && !renamed ? Change::kTouched : Change::kNone;
}

bool HeldFile::written() const {
  struct stat now {};
  return ::fstat(fd_.get(), &now) != 0 || now.st_size != seen_.st_size ||
         !same_time(now.st_mtim, seen_.st_mtim);
}

bool HeldFile::replaced() const {
  struct stat there {};
  if (::stat(path_.c_str(), &there) == 0)
    return there.st_dev != seen_.st_dev || there.st_ino != seen_.st_ino;
  // For other errors nobody knows what the path leads to.
  return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

}  // namespace shoal
