#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "runtime/base/fd.h"

namespace shoal {

/// Writes to a descriptor that other processes share and whose reader may have stopped, such as
/// stderr, and never waits longer than it is told to.
///
/// A blocking write() may not return for hours, and to poll first is not enough: the front and all
/// ranks write to the same pipe, so another of them may take the room in between. To set O_NONBLOCK
/// is no way either, because the flag belongs to the open file description, which the shell and
/// other programs may share with us. So each kind of file gets a write of its own that cannot wait:
/// - A pipe or a terminal is opened a second time through /proc. That gives a description of our
///   own, and so a flag of our own.
/// - A socket takes MSG_DONTWAIT for each call.
/// - A pipe that cannot be opened again (/proc is missing, or it belongs to another user) is filled
///   from a pipe of our own by splice(), which takes SPLICE_F_NONBLOCK for each call.
/// - A regular file or a device like /dev/null has no reader to wait for. To open a file again
///   would lose the position that its writers share.
/// If all of this fails, it polls and then writes, which waits only if another writer is quicker.
///
/// Not thread-safe.
class PatientWriter {
 public:
  explicit PatientWriter(int fd) : fd_(fd) {}

  /// Looks what the descriptor is, so that the first write() needs no descriptor of its own.
  void prepare();

  /// Writes the text, and waits for at most wait_ms milliseconds. False: it is lost; error() says
  /// why. If a reader stops in the middle of a long text, the rest is kept and goes first at the
  /// next call, so that no text is cut short by another one of this process. If a file was full, or
  /// the reader went, in the middle of a text, that text is lost, and a newline goes before the
  /// next.
  bool write(std::string_view text, int64_t wait_ms);

  /// Why the last write() returned false. EAGAIN: nobody reads.
  int error() const { return error_; }

 private:
  enum class Way { kUnknown, kPlain, kOwn, kSocket, kSplice, kPoll };

  bool flush(int64_t wait_ms);
  ssize_t push(const char* data, size_t size);
  ssize_t splice(const char* data, size_t size);
  Way way_for(mode_t mode);

  const int fd_;
  Way way_ = Way::kUnknown;
  dev_t device_ = 0;  // device_ and inode_: the file that way_ is for
  ino_t inode_ = 0;
  Fd own_;                   // kOwn: the same file, opened again
  Fd inner_in_, inner_out_;  // kSplice: our own pipe, empty between two calls
  std::string rest_;         // of a text that was begun
  int error_ = 0;
};

}  // namespace shoal
