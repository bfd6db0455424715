#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "server/intake/fair_queue.h"
#include "server/intake/front_call.h"
#include "server/intake/request_ids.h"
#include "server/serving/refused_request.h"
#include "server/serving/request_book.h"
#include "server/serving/serving_state.h"

namespace shoal {

/// The longest message that a client may send. A prompt of 128k tokens takes about 1 MiB as text or
/// as ids. gRPC's own limit of 4 MiB would suffice for it; this one leaves more room.
inline constexpr size_t kMaxRequestBytes = size_t{16} << 20;

/// The way in for the requests of all clients, which it knows from their first byte until their
/// calls leave. It bounds the memory that they take together, and works on them on two threads of
/// its own, so that no thread of a front does work that grows with a request. A request passes four
/// states:
///
///   waiting    nothing of it has been read, so that it holds no memory here
///   arriving   its front reads it; it is counted with the most that it may have
///   queued     it waits for a thread; it is counted with its bytes
///   accepted   it waits for the engine or runs; it is counted with what is kept of it
///
/// Short requests and long ones have a thread each, so that a short one never waits for the
/// tokenizing of a long one. Wherever requests wait, clients take turns, and one client has at most
/// half of the places and bytes while another one needs some: its latest requests are evicted. A
/// client gets a second place to arrive in only if every other one that waits has its first.
/// Thread-safe. The lock of its book guards it, and is not held while it calls a FrontCall.
class Intake {
 public:
  struct Options {
    /// For all requests together, from their first byte to their end.
    size_t budget_bytes = size_t{256} << 20;
    size_t max_waiting = 4096;
    size_t max_queued = 1024;    ///< of each thread
    int max_wait_ms = 10'000;    ///< in the state waiting
    int slow_sender_ms = 5'000;  ///< in the state arriving, if others wait
    /// If another client waits, a connection that brings less than this many bytes in this time
    /// has stopped, and its request is evicted.
    int stopped_ms = 250;
    size_t stopped_bytes = size_t{16} << 10;
    size_t short_bytes = size_t{64} << 10;  ///< the longest of the short requests
  };

  /// Shares the book of `state`, which accepts the requests.
  Intake(const Options& options, std::shared_ptr<ServingState> state);
  ~Intake();  ///< calls stop()

  /// client: who sent the request. most_bytes: the most that it may have, if its length is known
  /// before it is read.
  void enter(const std::shared_ptr<FrontCall>& call, const std::string& client,
             size_t most_bytes = kMaxRequestBytes);
  void arrived(const FrontCall& call, size_t bytes);
  /// Counts the bytes that the front may keep of the answer until leave(). Call it before the
  /// request is submitted. Not ok: there is no room for them, and the request is refused. Answers
  /// have a budget of their own, as large as that of requests, so that they never keep a request
  /// from being read; and one client leaves room in it for the largest answer of another one.
  RefusedRequest keep_answer(const FrontCall& call, size_t bytes);
  /// What is kept of a call that makes no LiveRequest, in bytes, until leave().
  void accepted(const FrontCall& call, size_t bytes);
  /// The call is over, in whichever state: its LiveRequests are given up, and their ids are free.
  /// No effect if it is not known.
  void leave(const FrontCall& call);

  /// Ends the running request that has this id, and returns kAborted. Its client receives the
  /// reason kCancelled. Returns kFinished if the request, or an earlier one with the same id, has
  /// already ended by itself. Returns kUnknown if none of the last few thousand requests had this
  /// id.
  enum class AbortOutcome { kAborted, kFinished, kUnknown };
  AbortOutcome abort(const std::string& request_id);
  /// Aborts all requests and returns how many were ended by it.
  int abort_all();

  /// Rejects the requests that have waited too long, and those whose clients have stopped sending.
  /// Call it several times a second.
  void reject_late(RunningClock::time_point now);

  /// Ends the calls of accepted requests whose clients have not taken a message for longer than
  /// `limit`.
  void drop_slow_readers(std::chrono::milliseconds limit);

  /// From now on no request is accepted, because the server shuts down: all that wait or arrive are
  /// rejected, and whoever enters. Those that are accepted go on.
  void drain();
  /// Returns true when no call is left, or false at the deadline.
  bool wait_until_empty(Deadline deadline);

  /// No work() is called any more once this has returned.
  void stop();

  size_t counted_bytes() const;
  size_t budget_bytes() const { return options_.budget_bytes; }

 private:
  friend LiveRequest;
  enum class State { kWaiting, kArriving, kQueued, kAccepted };
  struct Entry {
    std::shared_ptr<FrontCall> call;
    std::string client;
    State state = State::kWaiting;
    size_t bytes = 0;
    size_t most_bytes = 0;
    size_t answer_bytes = 0;  // that the front may keep of the answer
    bool rejected = false;    // it hears reject(), so that nothing else is done with it
    std::vector<std::shared_ptr<LiveRequest>> requests = {};
    size_t accepted = 0, accepted_bytes = 0;  // of these requests
    RunningClock::time_point since;
    /// What its connection had brought when it came, and later when that was last looked at. The
    /// time counts from when it begins to arrive.
    uint64_t received = 0;
    RunningClock::time_point looked_at = {};
  };
  /// What the requests of one client take, or those of all.
  struct Share {
    size_t bytes = 0;
    int arriving = 0;    // requests
    size_t answers = 0;  // bytes that fronts may keep of answers
  };
  struct Lane {
    FairQueue<const FrontCall*> queue;
    std::condition_variable changed;
    std::thread thread;
  };
  using Calls = std::vector<std::shared_ptr<FrontCall>>;
  class Turn;
  bool keep(const RequestBook::Lock& held, const FrontCall& call,
            std::shared_ptr<LiveRequest> request);
  Result<const ServedModel*, RefusedRequest> accept(LiveRequest& live, ResolvedRequest request,
                                                    const RequestOrigin& origin);
  Calls admit();
  std::optional<const FrontCall*> next_to_read(bool last_place);
  Share share_of(const std::string& client) const;
  void look_at_senders(RunningClock::time_point now);
  void count(Entry& entry, State state, size_t bytes);
  void run(Lane& lane);

  const Options options_;
  const std::shared_ptr<ServingState> state_;
  const std::shared_ptr<RequestBook> book_;              // its lock guards the following
  std::unordered_map<const FrontCall*, Entry> entries_;  // owns the calls; the queues are views
  RequestIds ids_;
  FairQueue<const FrontCall*> waiting_;
  std::unordered_map<std::string, Share> shares_;  // of clients that have any
  Share all_;                                      // of all clients together
  bool stop_ = false;
  std::condition_variable left_;
  Lane short_, long_;
};

}  // namespace shoal
