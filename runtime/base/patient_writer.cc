#include "runtime/base/patient_writer.h"

#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/base/deadline.h"

namespace shoal {
namespace {

/// How often to try again while nothing reports that there is room.
constexpr int kLookMs = 20;

}  // namespace

PatientWriter::Way PatientWriter::way_for(mode_t mode) {
  own_.reset();
  inner_in_.reset();
  inner_out_.reset();
  if (S_ISSOCK(mode)) return Way::kSocket;
  if (!S_ISFIFO(mode) && ::isatty(fd_) == 0) return Way::kPlain;
  own_.reset(::open(cat("/proc/self/fd/", fd_).c_str(),
                    O_WRONLY | O_NONBLOCK | O_NOCTTY | O_APPEND | O_CLOEXEC));
  struct stat opened;
  if (own_.valid() && ::fstat(own_.get(), &opened) == 0 && opened.st_dev == device_ &&
      opened.st_ino == inode_) {
    return Way::kOwn;
  }
  own_.reset();
  int ends[2];
  if (!S_ISFIFO(mode) || ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Way::kPoll;
  inner_out_.reset(ends[0]);
  inner_in_.reset(ends[1]);
  return Way::kSplice;
}

void PatientWriter::prepare() {
  struct stat facts;
  if (::fstat(fd_, &facts) != 0) {
    way_ = Way::kPlain;  // write() then says what is wrong
    return;
  }
  // The descriptor may have become another file. A way that was only second best is tried again.
  const bool same = facts.st_dev == device_ && facts.st_ino == inode_;
  if (same && way_ != Way::kUnknown && way_ != Way::kPoll) return;
  if (!same) rest_.clear();
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  way_ = way_for(facts.st_mode);
}

/// Moves at most PIPE_BUF bytes through our own pipe, which takes them as one page. What the other
/// pipe has no room for is taken out again.
ssize_t PatientWriter::splice(const char* data, size_t size) {
  const ssize_t filled = ::write(inner_in_.get(), data, size < PIPE_BUF ? size : PIPE_BUF);
  if (filled <= 0) return filled;
  const ssize_t moved = ::splice(inner_out_.get(), nullptr, fd_, nullptr,
                                 static_cast<size_t>(filled), SPLICE_F_NONBLOCK);
  const int error = errno;
  char back[PIPE_BUF];
  if (moved < filled) {
    [[maybe_unused]] const ssize_t taken = ::read(inner_out_.get(), back, sizeof back);
  }
  if (moved < 0 && (error == EINVAL || error == ENOSYS || error == EPERM)) way_ = Way::kPoll;
  errno = error == EINVAL || error == ENOSYS || error == EPERM ? EINTR : error;  // the other way
  return moved;
}

/// How many bytes were taken; -1 with errno.
ssize_t PatientWriter::push(const char* data, size_t size) {
  switch (way_) {
    case Way::kOwn:
      return ::write(own_.get(), data, size);
    case Way::kSocket:
      return ::send(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    case Way::kSplice:
      return splice(data, size);
    case Way::kPoll: {
      pollfd room{fd_, POLLOUT, 0};
      if (::poll(&room, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
      }
      return ::write(fd_, data, size < PIPE_BUF ? size : PIPE_BUF);
    }
    case Way::kUnknown:
    case Way::kPlain:
      break;
  }
  return ::write(fd_, data, size);
}

/// Writes rest_. False: some of it is left; error_ says why.
bool PatientWriter::flush(int64_t wait_ms) {
  const Deadline deadline = Deadline::after_ms(wait_ms);
  while (!rest_.empty()) {
    const ssize_t taken = push(rest_.data(), rest_.size());
    if (taken > 0) {
      rest_.erase(0, static_cast<size_t>(taken));
      continue;
    }
    error_ = taken == 0 ? EAGAIN : errno;
    if (error_ == EINTR) continue;
    if (error_ != EAGAIN || deadline.passed()) return false;
    pollfd room{own_.valid() ? own_.get() : fd_, POLLOUT, 0};
    ::poll(&room, 1, deadline.remaining_ms(kLookMs));
  }
  return true;
}

bool PatientWriter::write(std::string_view text, int64_t wait_ms) {
  prepare();
  if (!flush(wait_ms)) return false;
  rest_ = text;
  if (flush(wait_ms)) return true;
  const bool begun = rest_.size() < text.size();
  if (begun && error_ == EAGAIN) return true;
  // A file was full in the middle of it, or its reader has gone. What is there is no line, and must
  // end before the next text.
  rest_ = begun ? "\n" : "";
  return false;
}

}  // namespace shoal
