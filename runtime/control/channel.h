#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace shoal {

/// One end of a socket pair between the front and a worker: whole frames, each a 4-byte length and
/// that many bytes. One thread per direction at most. After an error the channel is of no more use.
class Channel {
 public:
  explicit Channel(Fd socket) : socket_(std::move(socket)) {}

  /// Two connected ends, close-on-exec. RESOURCE_EXHAUSTED with errno when there is no descriptor
  /// left.
  static Result<std::pair<Fd, Fd>> make_pair();

  /// UNAVAILABLE: the other end is closed. DEADLINE_EXCEEDED: the other end does not read.
  /// INVALID_ARGUMENT: a frame of 1 GiB or more.
  Status send(std::string_view frame, Deadline deadline);

  /// The next frame. spin_us: how long to look for it without sleeping (a wake-up costs 20-30 us on
  /// a virtual machine). UNAVAILABLE: the other end is closed; DEADLINE_EXCEEDED: nothing came
  /// (what had come of a frame is kept).
  Result<std::string> receive(Deadline deadline, int spin_us = 0);

  int fd() const { return socket_.get(); }

 private:
  bool take_frame(std::string* frame);

  Fd socket_;
  std::string buffer_;  // received bytes that are not yet a whole frame
};

}  // namespace shoal
