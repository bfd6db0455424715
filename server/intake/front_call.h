#pragma once
#include <chrono>
#include <cstdint>

#include "server/serving/refused_request.h"

namespace shoal {

/// One call of a client, as its front implements it. This is all that a front is asked: the intake
/// says when to read the request and when to work on it, and the LiveRequest when there is an
/// answer to send. Any thread may call these, several at the same time, and none of the callers
/// holds a lock.
class FrontCall {
 public:
  virtual ~FrontCall() = default;

  /// There is room: read the request, and call Intake::arrived() or leave() afterwards.
  virtual void read() = 0;
  /// How many bytes its connection has brought so far.
  virtual uint64_t received() = 0;
  /// Translate the request and submit it (LiveRequest::submit). Called on a thread of the Intake.
  /// If it cannot be submitted, tell the client why, and call Intake::leave() afterwards.
  virtual void work() = 0;
  /// The request is refused: there is no room, it arrives too slowly, another client needs its
  /// place, or the server shuts down. Tell the client why, and call Intake::leave() afterwards. The
  /// Intake does not call work() for it any more.
  virtual void reject(const RefusedRequest& why) = 0;

  /// There is something to take (LiveRequest::take). Must not block.
  virtual void output_ready() = 0;
  /// End the call if its client has not taken a message for longer than `limit`.
  virtual void drop_if_slow(std::chrono::milliseconds limit) = 0;
};

}  // namespace shoal
