#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// One end of a socket pair between the front and a worker. It carries whole frames, each a 4-byte
/// length and this many bytes. One thread may send while another receives. After an error it is of
/// no more use, except after DEADLINE_EXCEEDED from receive().
class Channel {
 public:
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  /// Two connected ends, close-on-exec. RESOURCE_EXHAUSTED, with errno: no descriptor is left.
  static Result<std::pair<Fd, Fd>> make_pair();

  /// Sends one frame. UNAVAILABLE: the other end is closed. DEADLINE_EXCEEDED: the other end does
  /// not read. INVALID_ARGUMENT: the frame has 1 GiB or more.
  Status send(std::string_view frame, Deadline deadline);

  /// The next frame. spin_us: how many microseconds to look for it without sleeping, because a
  /// wake-up costs 20-30 us on a virtual machine. UNAVAILABLE: the other end is closed.
  /// DEADLINE_EXCEEDED: no whole frame came in time; the part that came is kept for the next call.
  /// INTERNAL: the length that was received is 1 GiB or more, which no frame has.
  Result<std::string> receive(Deadline deadline, int spin_us = 0);

  int fd() const { return socket_.get(); }

 private:
  Result<bool> take_frame(std::string* frame);

  Fd socket_;
  std::string buffer_;  // received bytes that are not yet a whole frame
};

}  // namespace shoal
