#include "runtime/control/channel.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include "runtime/base/process_limit.h"

namespace shoal {
namespace {

constexpr size_t kMaxFrameBytes = size_t{1} << 30;

}  // namespace

Result<std::pair<Fd, Fd>> Channel::make_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    const int error = errno;
    return Status::error(descriptor_code(error),
                         cat("make the control channel's socket pair", descriptor_hint(error)),
                         error);
  }
  return std::pair(Fd(fds[0]), Fd(fds[1]));
}

Status Channel::send(std::string_view frame, Deadline deadline) {
  if (frame.size() >= kMaxFrameBytes) {
    return Status::error(Code::kInvalidArgument,
                         cat("a control message of ", frame.size(), " B is too long"));
  }
  const auto length = static_cast<uint32_t>(frame.size());
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes.append(frame);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::send(socket_.get(), bytes.data() + done, bytes.size() - done,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (deadline.passed()) {
        return Status::error(Code::kDeadlineExceeded,
                             cat("the other end read ", done, " of ", bytes.size(), " B"));
      }
      pollfd ready{socket_.get(), POLLOUT, 0};
      ::poll(&ready, 1, deadline.remaining_ms(1000));
    } else if (errno != EINTR) {
      return Status::error(Code::kUnavailable, "the control channel is closed", errno);
    }
  }
  return {};
}

Result<bool> Channel::take_frame(std::string* frame) {
  uint32_t length = 0;
  if (buffer_.size() < sizeof length) return false;
  std::memcpy(&length, buffer_.data(), sizeof length);
  // send() sends no such frame, so these bytes are something else. To wait for them would fill the
  // memory.
  if (length >= kMaxFrameBytes)
    return Status::error(Code::kInternal,
                         cat("a control message of ", length, " B was announced, which is none"));
  if (buffer_.size() < sizeof length + length) return false;
  frame->assign(buffer_, sizeof length, length);
  buffer_.erase(0, sizeof length + length);
  return true;
}

Result<std::string> Channel::receive(Deadline deadline, int spin_us) {
  const Clock::time_point spin_until = Clock::now() + std::chrono::microseconds(spin_us);
  std::string frame;
  char chunk[65536];
  for (;;) {
    SHOAL_ASSIGN_OR_RETURN(const bool whole, take_frame(&frame));
    if (whole) return frame;
    const ssize_t n = ::recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (n > 0) {
      buffer_.append(chunk, static_cast<size_t>(n));
      continue;
    }
    if (n == 0) return Status::error(Code::kUnavailable, "the control channel is closed");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return Status::error(Code::kUnavailable, "the control channel is closed", errno);
    }
    if (spin_us > 0 && Clock::now() < spin_until) {
      sched_yield();  // the sender may need this very core
      continue;
    }
    if (deadline.passed())
      return Status::error(Code::kDeadlineExceeded, "no control message came in time");
    pollfd ready{socket_.get(), POLLIN, 0};
    ::poll(&ready, 1, deadline.remaining_ms(1000));
  }
}

}  // namespace shoal
