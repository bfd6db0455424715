#include "server/intake/intake.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/wait.h"
#include "server/intake/live_request.h"
#include "server/intake/refusals.h"
#include "server/serving/generation_request.h"

namespace shoal {

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
  Calls admitted;
  std::shared_ptr<FrontCall> evicted;
  bool full = false, draining = false;
  const uint64_t received = call->received();
  {
    const RequestBook::Lock lock(*book_);
    draining = draining_;
    if (waiting_.size() >= options_.max_waiting) {
      const auto other = waiting_.evict_for(client, options_.max_waiting);
      if (other) {
        evicted = find(*other);
        entries_.at(*other).rejected = true;
      }
      full = !other;
    }
    if (!full && !draining) {
      entries_[call.get()] = {.call = call,
                              .client = client,
                              .most_bytes = most_bytes,
                              .since = RunningClock::now(),
                              .received = received};
      waiting_.push(client, call.get());
      admitted = admit();
    }
  }
  if (evicted) evicted->reject(refusals::evicted_for_another());
  if (draining) return call->reject(server_is_draining());
  if (full) call->reject(refusals::too_many());
  for (const auto& one : admitted) one->read();
}

std::shared_ptr<FrontCall> Intake::find(const FrontCall* call) const {
  const auto found = entries_.find(call);
  return found == entries_.end() ? nullptr : found->second.call;
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

/// Gives the free room to waiting requests. The caller holds the lock, and calls read() of the
/// returned ones after it has released the lock.
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
  Calls admitted;
  std::shared_ptr<FrontCall> rejected;
  bool full = false;
  {
    const RequestBook::Lock lock(*book_);
    const auto found = entries_.find(&call);
    if (found == entries_.end() || found->second.rejected) return;
    const std::string& client = found->second.client;
    Lane& lane = bytes <= options_.short_bytes ? short_ : long_;
    count(found->second, State::kQueued, bytes);
    if (lane.queue.size() >= options_.max_queued) {
      const auto other = lane.queue.evict_for(client, options_.max_queued);
      full = !other;
      rejected = find(other.value_or(&call));
    }
    if (!full) {
      lane.queue.push(client, &call);
      lane.changed.notify_one();
    }
    admitted = admit();
  }
  if (rejected) rejected->reject(full ? refusals::too_many() : refusals::evicted_for_another());
  for (const auto& one : admitted) one->read();
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
  Calls admitted;
  {
    const RequestBook::Lock lock(*book_);
    const auto found = entries_.find(&call);
    if (found == entries_.end()) return;
    count(found->second, State::kAccepted, bytes);
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
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
  RequestBook::Lock lock(*book_);
  SHOAL_RETURN_IF_ERROR(state_->refusal(lock));
  // The client went, or its call has left.
  if (live.given_up_)
    return refuse(NotTaken::kInvalid, Status::error(Code::kCancelled, "the client has left"));
  if (ids_.find(live.id_) != nullptr) return refusals::id_in_use(live.id_);
  SHOAL_ASSIGN_OR_RETURN(const ServingState::Accepted accepted,
                         state_->submit(lock, std::move(request), live.shared_from_this(), origin));
  live.loop_ = accepted.loop;
  live.loop_id_ = accepted.id;
  ids_.add(&live);
  Entry& entry = entries_.at(live.call_.get());
  entry.accepted_bytes += bytes;
  // The call still has what it needs for the other ones.
  const bool last = ++entry.accepted == entry.requests.size();
  count(entry, State::kAccepted,
        last ? entry.accepted_bytes : std::max(entry.bytes, entry.accepted_bytes));
  const Calls admitted = admit();
  lock.unlock();
  for (const auto& one : admitted) one->read();
  return accepted.model;
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
  Calls admitted;
  Entry last;  // destroyed after the lock is released, because it holds a front's code
  {
    const RequestBook::Lock lock(*book_);
    const auto found = entries_.find(&call);
    if (found == entries_.end()) return;
    if (found->second.state == State::kWaiting) waiting_.remove(found->second.client, &call);
    // In whichever state: a lane must not point to a call that is gone.
    for (Lane* lane : {&short_, &long_}) lane->queue.remove(found->second.client, &call);
    for (const auto& request : found->second.requests) request->leave(lock);
    for (Share* one : {&shares_[found->second.client], &all_})
      one->answers -= found->second.answer_bytes;
    count(found->second, State::kAccepted, 0);
    last = std::move(found->second);
    entries_.erase(found);
    left_.notify_all();
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
}

/// Asks the connections of requests that arrive what they have brought, without holding the lock,
/// and finds those that have stopped while another client waits.
void Intake::look_at_senders(RunningClock::time_point now, Calls* stopped) {
  Calls arriving;
  {
    const RequestBook::Lock lock(*book_);
    for (const auto& [call, entry] : entries_)
      if (entry.state == State::kArriving && !entry.rejected) arriving.push_back(entry.call);
  }
  std::vector<uint64_t> received;
  for (const auto& call : arriving) received.push_back(call->received());
  const RequestBook::Lock lock(*book_);
  for (size_t i = 0; i < arriving.size(); ++i) {
    const auto found = entries_.find(arriving[i].get());
    if (found == entries_.end() || found->second.state != State::kArriving) continue;
    Entry& entry = found->second;
    if (entry.rejected) continue;
    if (now - entry.looked_at < std::chrono::milliseconds(options_.stopped_ms)) continue;
    const bool moves = received[i] - entry.received >= options_.stopped_bytes;
    if (!moves && waiting_.any_but(entry.client)) {
      entry.rejected = true;
      stopped->push_back(arriving[i]);
    }
    entry.received = received[i];
    entry.looked_at = now;
  }
}

void Intake::reject_late(RunningClock::time_point now) {
  const auto older = [now](const Entry& entry, int milliseconds) {
    return now - entry.since > std::chrono::milliseconds(milliseconds);
  };
  Calls without_room, slow, still;
  {
    const RequestBook::Lock lock(*book_);
    if (waiting_.empty()) return;
    for (auto& [call, entry] : entries_) {
      const bool waits = entry.state == State::kWaiting && older(entry, options_.max_wait_ms);
      const bool sends = entry.state == State::kArriving && older(entry, options_.slow_sender_ms);
      if (entry.rejected || (!waits && !sends)) continue;
      entry.rejected = true;
      if (waits) waiting_.remove(entry.client, call);
      (waits ? without_room : slow).push_back(entry.call);
    }
  }
  look_at_senders(now, &still);
  for (const auto& call : without_room) call->reject(refusals::no_room(options_.budget_bytes));
  for (const auto& call : slow) call->reject(refusals::too_slow(options_.slow_sender_ms));
  for (const auto& call : still) call->reject(refusals::stopped(options_.stopped_ms));
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
  Calls unread;
  {
    const RequestBook::Lock lock(*book_);
    draining_ = true;
    for (auto& [call, entry] : entries_) {
      if (entry.rejected || (entry.state != State::kWaiting && entry.state != State::kArriving))
        continue;
      entry.rejected = true;
      if (entry.state == State::kWaiting) waiting_.remove(entry.client, call);
      unread.push_back(entry.call);
    }
  }
  for (const auto& call : unread) call->reject(server_is_draining());
}

bool Intake::wait_until_answered(Deadline deadline) {
  RequestBook::Lock lock(*book_);
  return wait_until_ready(left_, lock, deadline, [this] {
    return std::none_of(entries_.begin(), entries_.end(),
                        [](const auto& entry) { return entry.second.state == State::kAccepted; });
  });
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
    std::shared_ptr<FrontCall> call = find(*lane.queue.pop());
    lock.unlock();
    call->work();
    call.reset();
    lock.lock();
  }
}

}  // namespace shoal
