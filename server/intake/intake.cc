#include "server/intake/intake.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/wait.h"
#include "server/intake/live_request.h"
#include "server/intake/refusals.h"
#include "server/serving/generation_request.h"

namespace shoal {

/// Holds the lock while it is decided what becomes of calls. They hear of it when the turn ends,
/// without the lock: first those that are rejected, then those that there is room for now.
class Intake::Turn {
 public:
  explicit Turn(Intake& intake) : held(*intake.book_), intake_(intake) {}
  ~Turn() {
    const Calls admitted = intake_.admit();
    held.unlock();
    for (const auto& [call, why] : rejected_) call->reject(why);
    for (const auto& call : admitted) call->read();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void reject(std::shared_ptr<FrontCall> call, RefusedRequest why) {
    rejected_.emplace_back(std::move(call), std::move(why));
  }
  void reject(Entry& entry, RefusedRequest why) {
    entry.rejected = true;
    if (entry.state == State::kWaiting) intake_.waiting_.remove(entry.client, entry.call.get());
    reject(entry.call, std::move(why));
  }

  RequestBook::Lock held;

 private:
  Intake& intake_;
  std::vector<std::pair<std::shared_ptr<FrontCall>, RefusedRequest>> rejected_;
};

Intake::Intake(const Options& options, std::shared_ptr<ServingState> state)
    : options_(options), state_(std::move(state)), book_(state_->book()) {
  for (Lane* lane : {&short_, &long_}) lane->thread = std::thread([this, lane] { run(*lane); });
}

Intake::~Intake() {
  stop();
}

void Intake::stop() {
  {
    const RequestBook::Lock lock(*book_);
    stop_ = true;
  }
  for (Lane* lane : {&short_, &long_}) {
    lane->changed.notify_one();
    if (lane->thread.joinable()) lane->thread.join();
  }
}

void Intake::enter(const std::shared_ptr<FrontCall>& call, const std::string& client,
                   size_t most_bytes) {
  const uint64_t received = call->received();
  Turn turn(*this);
  if (state_->draining(turn.held)) return turn.reject(call, server_is_draining());
  if (waiting_.size() >= options_.max_waiting) {
    const auto other = waiting_.evict_for(client, options_.max_waiting);
    if (!other) return turn.reject(call, refusals::too_many());
    turn.reject(entries_.at(*other), refusals::evicted_for_another());
  }
  entries_[call.get()] = {.call = call,
                          .client = client,
                          .most_bytes = most_bytes,
                          .since = RunningClock::now(),
                          .received = received};
  waiting_.push(client, call.get());
}

Intake::Share Intake::share_of(const std::string& client) const {
  const auto found = shares_.find(client);
  return found == shares_.end() ? Share() : found->second;
}

/// Takes the next waiting request. A client that has no request arriving goes first, if there is
/// such a client.
std::optional<const FrontCall*> Intake::next_to_read(bool last_place) {
  const auto has_room = [this](const std::string& client) {
    return share_of(client).bytes + kMaxRequestBytes <= fair_part(options_.budget_bytes);
  };
  const auto has_none = [&](const std::string& client) {
    return share_of(client).arriving == 0 && has_room(client);
  };
  if (auto next = waiting_.pop_if(has_none)) return next;
  if (auto next = waiting_.pop_if(has_room)) return next;
  return last_place ? std::nullopt : waiting_.pop();
}

/// Gives the free room to waiting requests, and returns the calls that may read theirs. The caller
/// holds the lock.
Intake::Calls Intake::admit() {
  Calls admitted;
  while (all_.bytes + kMaxRequestBytes <= options_.budget_bytes) {
    // A client that already has its share may get more, but not the last place. So another client
    // that comes never has to wait until those requests have arrived.
    const bool last = all_.bytes > 0 && all_.bytes + 2 * kMaxRequestBytes > options_.budget_bytes;
    const std::optional<const FrontCall*> next = next_to_read(last);
    if (!next) break;
    Entry& entry = entries_.at(*next);
    count(entry, State::kArriving, entry.most_bytes);
    admitted.push_back(entry.call);
  }
  return admitted;
}

/// Moves an entry to a state in which it counts with this many bytes. The caller holds the lock.
void Intake::count(Entry& entry, State state, size_t bytes) {
  Share& share = shares_[entry.client];
  for (Share* one : {&share, &all_}) {
    one->bytes += bytes;
    one->bytes -= entry.bytes;
    one->arriving += (state == State::kArriving) - (entry.state == State::kArriving);
  }
  if (share.bytes == 0 && share.arriving == 0 && share.answers == 0) shares_.erase(entry.client);
  entry.bytes = bytes;
  entry.state = state;
  entry.since = entry.looked_at = RunningClock::now();
}

void Intake::arrived(const FrontCall& call, size_t bytes) {
  Turn turn(*this);
  const auto found = entries_.find(&call);
  if (found == entries_.end() || found->second.rejected) return;
  Entry& entry = found->second;
  count(entry, State::kQueued, bytes);
  Lane& lane = bytes <= options_.short_bytes ? short_ : long_;
  if (lane.queue.size() >= options_.max_queued) {
    const auto other = lane.queue.evict_for(entry.client, options_.max_queued);
    if (!other) return turn.reject(entry, refusals::too_many());
    turn.reject(entries_.at(*other), refusals::evicted_for_another());
  }
  lane.queue.push(entry.client, &call);
  lane.changed.notify_one();
}

RefusedRequest Intake::keep_answer(const FrontCall& call, size_t bytes) {
  const RequestBook::Lock lock(*book_);
  const auto found = entries_.find(&call);
  if (found == entries_.end() || bytes == 0) return {};
  const size_t theirs = share_of(found->second.client).answers;
  const size_t most = options_.budget_bytes,
               most_of_one = most - std::min(kMaxAnswerBytes, fair_part(most));
  // The only one of a client, and the only one at all, may have any size that its front permits.
  if ((theirs > 0 && theirs + bytes > most_of_one) ||
      (all_.answers > 0 && all_.answers + bytes > most))
    return refusals::no_room_for_answer(most);
  found->second.answer_bytes = bytes;
  shares_[found->second.client].answers += bytes;
  all_.answers += bytes;
  return {};
}

void Intake::accepted(const FrontCall& call, size_t bytes) {
  const Turn turn(*this);
  const auto found = entries_.find(&call);
  if (found != entries_.end()) count(found->second, State::kAccepted, bytes);
}

bool Intake::keep(const RequestBook::Lock& /*held*/, const FrontCall& call,
                  std::shared_ptr<LiveRequest> request) {
  const auto found = entries_.find(&call);
  if (found == entries_.end()) return false;
  found->second.requests.push_back(std::move(request));
  return true;
}

/// ServingState::refusal says whether any request is taken, and Admission which of them.
Result<const ServedModel*, RefusedRequest> Intake::accept(LiveRequest& live,
                                                          ResolvedRequest request,
                                                          const RequestOrigin& origin) {
  const size_t bytes = kept_bytes(request);
  const Turn turn(*this);
  SHOAL_RETURN_IF_ERROR(state_->refusal(turn.held));
  // The client went, or its call has left.
  if (live.given_up_)
    return refuse(NotTaken::kInvalid, Status::error(Code::kCancelled, "the client has left"));
  if (ids_.find(live.id_) != nullptr) return refusals::id_in_use(live.id_);
  SHOAL_ASSIGN_OR_RETURN(const ServedModel* model, state_->submit(turn.held, std::move(request),
                                                                  live.shared_from_this(), origin));
  ids_.add(&live);
  Entry& entry = entries_.at(live.call_.get());
  entry.accepted_bytes += bytes;
  // The call still has what it needs for the other ones.
  const bool last = ++entry.accepted == entry.requests.size();
  count(entry, State::kAccepted,
        last ? entry.accepted_bytes : std::max(entry.bytes, entry.accepted_bytes));
  return model;
}

Intake::AbortOutcome Intake::abort(const std::string& request_id) {
  const RequestBook::Lock lock(*book_);
  // The id is in use until the client learns of the end, which may have come by itself.
  LiveRequest* const request = ids_.find(request_id);
  if (request != nullptr)
    return request->cancel(lock) ? AbortOutcome::kAborted : AbortOutcome::kFinished;
  return ids_.was_released(request_id) ? AbortOutcome::kFinished : AbortOutcome::kUnknown;
}

int Intake::abort_all() {
  const RequestBook::Lock lock(*book_);
  int aborted = 0;
  for (const auto& [id, request] : ids_.in_use()) aborted += request->cancel(lock);
  return aborted;
}

void Intake::leave(const FrontCall& call) {
  Entry last;  // destroyed after the lock is released, because it holds a front's code
  const Turn turn(*this);
  const auto found = entries_.find(&call);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.state == State::kWaiting) waiting_.remove(entry.client, &call);
  // In whichever state: a lane must not point to a call that is gone.
  for (Lane* lane : {&short_, &long_}) lane->queue.remove(entry.client, &call);
  for (const auto& request : entry.requests) request->leave(turn.held);
  for (Share* one : {&shares_[entry.client], &all_}) one->answers -= entry.answer_bytes;
  count(entry, State::kAccepted, 0);
  last = std::move(entry);
  entries_.erase(found);
  left_.notify_all();
}

/// Asks the connections of requests that arrive what they have brought, without holding the lock,
/// and rejects those that have stopped while another client waits.
void Intake::look_at_senders(RunningClock::time_point now) {
  Calls arriving;
  {
    const RequestBook::Lock lock(*book_);
    for (const auto& [call, entry] : entries_)
      if (entry.state == State::kArriving && !entry.rejected) arriving.push_back(entry.call);
  }
  std::vector<uint64_t> received;
  for (const auto& call : arriving) received.push_back(call->received());
  Turn turn(*this);
  for (size_t i = 0; i < arriving.size(); ++i) {
    const auto found = entries_.find(arriving[i].get());
    if (found == entries_.end() || found->second.state != State::kArriving) continue;
    Entry& entry = found->second;
    if (entry.rejected) continue;
    if (now - entry.looked_at < std::chrono::milliseconds(options_.stopped_ms)) continue;
    const bool moves = received[i] - entry.received >= options_.stopped_bytes;
    if (!moves && waiting_.any_but(entry.client))
      turn.reject(entry, refusals::stopped(options_.stopped_ms));
    entry.received = received[i];
    entry.looked_at = now;
  }
}

void Intake::reject_late(RunningClock::time_point now) {
  const auto older = [now](const Entry& entry, int milliseconds) {
    return now - entry.since > std::chrono::milliseconds(milliseconds);
  };
  {
    Turn turn(*this);
    if (waiting_.empty()) return;
    for (auto& [call, entry] : entries_) {
      if (entry.rejected) continue;
      if (entry.state == State::kWaiting && older(entry, options_.max_wait_ms))
        turn.reject(entry, refusals::no_room(options_.budget_bytes));
      if (entry.state == State::kArriving && older(entry, options_.slow_sender_ms))
        turn.reject(entry, refusals::too_slow(options_.slow_sender_ms));
    }
  }
  look_at_senders(now);
}

void Intake::drop_slow_readers(std::chrono::milliseconds limit) {
  Calls accepted;
  {
    const RequestBook::Lock lock(*book_);
    for (const auto& [call, entry] : entries_)
      if (entry.state == State::kAccepted) accepted.push_back(entry.call);
  }
  for (const auto& call : accepted) call->drop_if_slow(limit);
}

void Intake::drain() {
  Turn turn(*this);
  state_->set_draining(turn.held);
  for (auto& [call, entry] : entries_) {
    const bool unread = entry.state == State::kWaiting || entry.state == State::kArriving;
    if (unread && !entry.rejected) turn.reject(entry, server_is_draining());
  }
}

bool Intake::wait_until_empty(Deadline deadline) {
  RequestBook::Lock lock(*book_);
  return wait_until_ready(left_, lock, deadline, [this] { return entries_.empty(); });
}

size_t Intake::counted_bytes() const {
  const RequestBook::Lock lock(*book_);
  return all_.bytes;
}

void Intake::run(Lane& lane) {
  RequestBook::Lock lock(*book_);
  for (;;) {
    wait_until_ready(lane.changed, lock, [&] { return stop_ || !lane.queue.empty(); });
    if (stop_) return;
    std::shared_ptr<FrontCall> call = entries_.at(*lane.queue.pop()).call;
    lock.unlock();
    call->work();
    call.reset();
    lock.lock();
  }
}

}  // namespace shoal
