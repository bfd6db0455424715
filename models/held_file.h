#pragma once
#include <cstdint>
#include <string>
#include <sys/stat.h>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// A regular file of a model that stays open for as long as the model is in use. The descriptor
/// leads to the same bytes even if the name is given to another file, and it shows whether somebody
/// writes to these bytes. Not thread-safe.
class HeldFile {
 public:
  /// Opens the file for reading. Its descriptor is close-on-exec and is a number that a worker can
  /// inherit unchanged (kFirstWorkFd). NOT_FOUND; PERMISSION_DENIED; INVALID_ARGUMENT: it is not a
  /// regular file; UNAVAILABLE: no descriptor is left, or no memory in the kernel.
  static Result<HeldFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  /// The size that the file had when it was opened.
  uint64_t bytes() const { return bytes_; }

  /// A copy of the first bytes, `most` of them or as many as there are. Unlike a mapping it cannot
  /// end the process (SIGBUS) if somebody cuts the file meanwhile. DATA_LOSS: it cannot be read.
  Result<std::string> head(uint64_t most) const;

  /// Remembers a fingerprint of the contents, for look(). It covers all of a file of at most
  /// `chunks` pieces of 64 KiB, and otherwise this many pieces that are evenly spread, the first
  /// and the last among them. DATA_LOSS: the file cannot be read, or
  /// was written to since it was opened (Fault::kModelChanged).
  Status take_fingerprint(int chunks);

  enum class Change {
    kNone,
    kTouched,   ///< what is known about it (owner, mode) is another, but not when it was written
    kWritten,   ///< it was written to, or its times were set, but the fingerprint is the same
    kContents,  ///< the size or the fingerprint is another, or the file cannot be read any more
  };
  /// What has happened to the file that is held since it was opened or since the last call that
  /// returned kTouched or kWritten. Compares the fingerprint if the times have changed, and with
  /// `always` in any case, because a write through a mapping of a tmpfs changes no times. Call
  /// take_fingerprint() before.
  Change look(bool always = false);

  /// True if the size of the file, or when it was written, is another than when it was opened, or
  /// cannot be seen. Whoever has found nonsense in the file then knows why. Names, owner and mode
  /// do not matter. Call it before look().
  bool written() const;

  /// True if the path leads to another file by now, or to none.
  bool replaced() const;

 private:
  HeldFile(std::string path, Fd fd, const struct stat& seen)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        bytes_(static_cast<uint64_t>(seen.st_size)),
        seen_(seen) {}
  Result<uint64_t> fingerprint() const;

  std::string path_;
  Fd fd_;
  uint64_t bytes_;  // never changes, so that a thread may read the file while another one looks
  struct stat seen_;
  int chunks_ = 1;
  uint64_t fingerprint_ = 0;
};

}  // namespace shoal
