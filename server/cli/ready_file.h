#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// The value of a field of the READY line: as it is, or as a JSON string if it holds a space, a
/// quote or a control character, so that a line can always be taken apart.
std::string ready_value(const std::string& value);

/// A file that exists while the server is ready, with the READY line in it, for scripts and probes
/// that can look for a file (--ready-file).
class ReadyFile {
 public:
  /// Removes what an earlier run has left, and proves that the file can be made. If path is empty,
  /// nothing is ever written. INVALID_ARGUMENT: the folder is missing or may not be written, or
  /// there is something else under that name, or the file of a server that is ready, which is left
  /// alone.
  static Result<std::unique_ptr<ReadyFile>> prepare(const std::string& path);
  /// The same error, but a file under that name is left alone, and may be that of a server that is
  /// ready.
  static Status check(const std::string& path);
  ~ReadyFile() { remove(); }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  /// Makes the file: it appears with the whole text at once. Error: UNAVAILABLE with errno.
  Status write(std::string_view text);
  /// Removes the file that write() has made, unless another file has taken its place. May be called
  /// from any thread, also while the process ends.
  void remove();

 private:
  explicit ReadyFile(std::string path);

  const std::string path_;
  const std::string new_path_;  // where the text is written before the file gets its name
  Fd file_;  // keeps the lock by which other servers know that this one has made it
  std::atomic<bool> written_{false};
};

}  // namespace shoal
