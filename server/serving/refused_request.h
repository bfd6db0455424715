#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/engine/request_error.h"

namespace shoal {

/// Why a request was not accepted, or was evicted before it had begun.
enum class NotTaken {
  kInvalid,             ///< the request itself is wrong, so a retry fails in the same way
  kIdInUse,             ///< a live request has the same request id
  kLoading,             ///< the model is not loaded yet
  kRestarting,          ///< the ranks were lost, and their restart takes long
  kDraining,            ///< the server shuts down
  kEngineLost,          ///< the ranks are lost for good
  kNoMemory,            ///< requests, or answers that are kept whole, take all the memory they may
  kQueueFull,           ///< no further request may wait
  kShareExceeded,       ///< its client had more than half of the queue, and it was evicted
  kTooLate,             ///< its first token is not likely to come in time
  kQueuedTooLong,       ///< it has waited for longer than the server lets requests wait
  kTooManyConnections,  ///< its connection is one more than the server serves
};

inline constexpr int kNotTakenReasons = static_cast<int>(NotTaken::kTooManyConnections) + 1;

/// The refusal of a request, or none if ok(). Only refuse() makes one, so that each refusal has a
/// NotTaken and says when to try again. A front only translates it.
struct RefusedRequest {
  RefusedRequest() = default;
  bool ok() const { return error.ok(); }
  Code code() const { return error.code(); }

  NotTaken why = NotTaken::kInvalid;
  RequestError error;
  int retry_ms = 0;  ///< in how many milliseconds it should be tried again; 0: never

 private:
  friend RefusedRequest refuse(NotTaken why, RequestError error, int measured_ms);
  RefusedRequest(NotTaken reason, RequestError what, int retry)
      : why(reason), error(std::move(what)), retry_ms(retry) {}
};

/// Refuses a request. measured_ms: when to try again by measured rates; 0: they are not known, so
/// that it is about the usual time for the reason.
RefusedRequest refuse(NotTaken why, RequestError error, int measured_ms = 0);
/// The same with the reason's usual code. The call site is recorded as Cause::where.
RefusedRequest refuse(NotTaken why, std::string what, int measured_ms = 0,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE());
/// The refusal of every request by a server that shuts down.
RefusedRequest server_is_draining();
/// The reason's name in every protocol, such as "QUEUE_FULL".
std::string_view reason_of(NotTaken why);
/// The reason of this name; nullopt: it is none of ours.
std::optional<NotTaken> not_taken_of(std::string_view reason);

/// The chain of causes on one line: "no transport; because: /dev/shm is full". Valid UTF-8 of at
/// most 1900 bytes, cut between characters.
std::string explain(const Status& status);

}  // namespace shoal
