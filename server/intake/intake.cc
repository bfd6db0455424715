#include "server/intake/intake.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/wait.h"
#include "server/serving/generation_request.h"

namespace shoal {

namespace {

RefusedRequest queue_full(std::string what) {
  return refuse(NotTaken::kQueueFull, Status::error(Code::kResourceExhausted, std::move(what)));
}

RefusedRequest no_room(size_t budget_bytes) {
  return refuse(
      NotTaken::kNoMemory,
      Status::error(Code::kResourceExhausted,
                    cat("the requests that are being served take all of the ", budget_bytes >> 20,
                        " MiB that requests may take; try again soon")));
}

RefusedRequest no_room_for_answer(size_t budget_bytes) {
  return refuse(
      NotTaken::kNoMemory,
      Status::error(Code::kResourceExhausted,
                    cat("answers that are kept until they are whole may take ", budget_bytes >> 20,
                        " MiB, and what is left of that is too little for this one: ask for a "
                        "stream, or for fewer tokens, or try again soon")));
}

RefusedRequest too_many() {
  return queue_full("too many requests wait to be read or tokenized; try again soon");
}

RefusedRequest evicted_for_another() {
  return refuse(
      NotTaken::kShareExceeded,
      Status::error(Code::kResourceExhausted,
                    "this client had more than half of the places in which requests wait to be "
                    "read or tokenized, and another client needs one, so that its latest "
                    "requests are refused"));
}

RefusedRequest too_slow(int milliseconds) {
  return queue_full(cat("the request did not arrive within ", milliseconds,
                        " ms while others waited for its place; try again soon"));
}

RefusedRequest stopped(int milliseconds) {
  return queue_full(cat("hardly anything of the request came for ", milliseconds,
                        " ms while another client waited for its place; try again soon"));
}

}  // namespace

Intake::Intake(const Options& options) : options_(options) {
  for (Lane* lane : {&short_, &long_}) lane->thread = std::thread([this, lane] { run(*lane); });
}

Intake::~Intake() {
  stop();
}

void Intake::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (Lane* lane : {&short_, &long_}) {
    lane->changed.notify_one();
    if (lane->thread.joinable()) lane->thread.join();
  }
  // Calls share the ownership of this object, so those that are left would keep it alive.
  FairQueue<std::shared_ptr<FrontCall>> unserved[2];
  const std::lock_guard lock(mutex_);
  std::swap(unserved[0], short_.queue);
  std::swap(unserved[1], long_.queue);
}

void Intake::enter(const std::shared_ptr<FrontCall>& call, const std::string& client,
                   size_t most_bytes) {
  Calls admitted;
  std::shared_ptr<FrontCall> evicted;
  bool full = false, draining = false;
  const uint64_t received = call->received();
  {
    const std::lock_guard lock(mutex_);
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
  if (evicted) evicted->reject(evicted_for_another());
  if (draining) return call->reject(server_is_draining());
  if (full) call->reject(too_many());
  for (const auto& one : admitted) one->read();
}

std::shared_ptr<FrontCall> Intake::find(const FrontCall* call) const {
  const auto found = entries_.find(call);
  return found == entries_.end() ? nullptr : found->second.call;
}

/// Whether the client may have one more request read, if others want the same.
bool Intake::has_room_for(const std::string& client) const {
  const auto found = bytes_of_.find(client);
  const size_t bytes = found == bytes_of_.end() ? 0 : found->second;
  return bytes + kMaxRequestBytes <= options_.budget_bytes / 2;
}

/// Takes the next waiting request. A client that has no request arriving goes first, if there is
/// such a client.
std::optional<const FrontCall*> Intake::next_to_read(bool last_place) {
  const auto has_none = [this](const std::string& client) {
    return !arriving_of_.contains(client) && has_room_for(client);
  };
  if (auto next = waiting_.pop_if(has_none)) return next;
  const auto has_room = [this](const std::string& client) { return has_room_for(client); };
  if (auto next = waiting_.pop_if(has_room)) return next;
  return last_place ? std::nullopt : waiting_.pop();
}

/// Gives the free room to waiting requests. The caller holds the lock, and calls read() of the
/// returned ones after it has released the lock.
Intake::Calls Intake::admit() {
  Calls admitted;
  while (bytes_ + kMaxRequestBytes <= options_.budget_bytes) {
    // A client that already has its share may get more, but not the last place. So another client
    // that comes never has to wait until those requests have arrived.
    const bool last = bytes_ > 0 && bytes_ + 2 * kMaxRequestBytes > options_.budget_bytes;
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
  bytes_ += bytes;
  bytes_ -= entry.bytes;
  size_t& of_client = bytes_of_[entry.client];
  of_client += bytes;
  of_client -= entry.bytes;
  if (of_client == 0) bytes_of_.erase(entry.client);
  if (entry.state != state && state == State::kArriving) ++arriving_of_[entry.client];
  if (entry.state != state && entry.state == State::kArriving) {
    const auto arriving = arriving_of_.find(entry.client);
    if (--arriving->second == 0) arriving_of_.erase(arriving);
  }
  entry.bytes = bytes;
  entry.state = state;
  entry.since = entry.looked_at = RunningClock::now();
}

void Intake::arrived(const FrontCall& call, size_t bytes) {
  Calls admitted;
  std::shared_ptr<FrontCall> rejected;
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&call);
    if (found == entries_.end() || found->second.rejected) return;
    const std::string& client = found->second.client;
    Lane& lane = bytes <= options_.short_bytes ? short_ : long_;
    count(found->second, State::kQueued, bytes);
    if (lane.queue.size() >= options_.max_queued) {
      rejected = lane.queue.evict_for(client, options_.max_queued).value_or(nullptr);
      full = rejected == nullptr;
    }
    if (full) {
      rejected = found->second.call;
    } else {
      lane.queue.push(client, found->second.call);
      lane.changed.notify_one();
    }
    admitted = admit();
  }
  if (rejected) rejected->reject(full ? too_many() : evicted_for_another());
  for (const auto& one : admitted) one->read();
}

RefusedRequest Intake::keep_answer(const FrontCall& call, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(&call);
  if (found == entries_.end() || bytes == 0) return {};
  const auto known = answers_of_.find(found->second.client);
  const size_t theirs = known == answers_of_.end() ? 0 : known->second;
  const size_t most = options_.budget_bytes,
               most_of_one = most - std::min(kMaxAnswerBytes, most / 2);
  // The only one of a client, and the only one at all, may have any size that its front permits.
  if ((theirs > 0 && theirs + bytes > most_of_one) || (answers_ > 0 && answers_ + bytes > most))
    return no_room_for_answer(most);
  found->second.answer_bytes = bytes;
  answers_of_[found->second.client] = theirs + bytes;
  answers_ += bytes;
  return {};
}

void Intake::forget_answer(const Entry& entry) {
  if (entry.answer_bytes == 0) return;
  answers_ -= entry.answer_bytes;
  const auto theirs = answers_of_.find(entry.client);
  if ((theirs->second -= entry.answer_bytes) == 0) answers_of_.erase(theirs);
}

void Intake::accepted(const FrontCall& call, size_t bytes) {
  Calls admitted;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&call);
    if (found == entries_.end()) return;
    count(found->second, State::kAccepted, bytes);
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
}

void Intake::leave(const FrontCall& call) {
  Calls admitted;
  std::shared_ptr<FrontCall> last;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&call);
    if (found == entries_.end()) return;
    if (found->second.state == State::kWaiting) waiting_.remove(found->second.client, &call);
    if (found->second.state == State::kQueued) {
      // Its lane would keep it, with all that was read of it.
      for (Lane* lane : {&short_, &long_})
        lane->queue.remove(found->second.client, found->second.call);
    }
    count(found->second, State::kAccepted, 0);
    forget_answer(found->second);
    last = std::move(found->second.call);
    entries_.erase(found);
    if (entries_.empty()) left_.notify_all();
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
}

/// Asks the connections of requests that arrive what they have brought, without holding the lock,
/// and finds those that have stopped while another client waits.
void Intake::look_at_senders(RunningClock::time_point now, Calls* stopped) {
  Calls arriving;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [call, entry] : entries_)
      if (entry.state == State::kArriving && !entry.rejected) arriving.push_back(entry.call);
  }
  std::vector<uint64_t> received;
  for (const auto& call : arriving) received.push_back(call->received());
  const std::lock_guard lock(mutex_);
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
    const std::lock_guard lock(mutex_);
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
  for (const auto& call : without_room) call->reject(no_room(options_.budget_bytes));
  for (const auto& call : slow) call->reject(too_slow(options_.slow_sender_ms));
  for (const auto& call : still) call->reject(stopped(options_.stopped_ms));
}

void Intake::drain() {
  Calls unread;
  {
    const std::lock_guard lock(mutex_);
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

bool Intake::wait_until_empty(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait_until_ready(left_, lock, deadline, [this] { return entries_.empty(); });
}

size_t Intake::counted_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void Intake::run(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wait_until_ready(lane.changed, lock, [&] { return stop_ || !lane.queue.empty(); });
    if (stop_) return;
    std::shared_ptr<FrontCall> call = *lane.queue.pop();
    lock.unlock();
    call->work();
    call.reset();
    lock.lock();
  }
}

}  // namespace shoal
