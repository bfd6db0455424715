#include "server/grpc/intake.h"

#include <utility>

#include "runtime/base/wait.h"

namespace shoal {

namespace {

Status no_room(size_t budget_bytes) {
  return Status::error(Code::kResourceExhausted,
                       cat("the requests that are being served take all of the ",
                           budget_bytes >> 20, " MiB that requests may take; try again soon"));
}

Status too_many() {
  return Status::error(Code::kResourceExhausted,
                       "too many requests wait to be read or tokenized; try again soon");
}

Status too_slow(int milliseconds) {
  return Status::error(Code::kResourceExhausted,
                       cat("the request did not arrive within ", milliseconds,
                           " ms while others waited for its place; try again soon"));
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
  // Guests own this object through their streams, so those that are left would keep it alive.
  std::deque<std::shared_ptr<Guest>> unserved[2];
  const std::lock_guard lock(mutex_);
  unserved[0].swap(short_.queue);
  unserved[1].swap(long_.queue);
}

void Intake::enter(const std::shared_ptr<Guest>& guest) {
  Guests admitted;
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    full = waiting_count_ >= options_.max_waiting;
    if (!full) {
      entries_[guest.get()] = {guest, State::kWaiting, 0, RunningClock::now()};
      waiting_.push_back(guest.get());
      ++waiting_count_;
      admitted = admit();
    }
  }
  if (full) guest->turn_away(too_many());
  for (const auto& one : admitted) one->read();
}

/// Gives those that have waited for longest the room that there is. The caller holds the lock, and
/// calls their read() after releasing it.
Intake::Guests Intake::admit() {
  Guests admitted;
  while (!waiting_.empty()) {
    const auto found = entries_.find(waiting_.front());
    if (found != entries_.end() && found->second.state == State::kWaiting) {
      if (bytes_ + kMaxRequestBytes > options_.budget_bytes) break;
      count(found->second, State::kArriving, kMaxRequestBytes);
      admitted.push_back(found->second.guest);
    }
    waiting_.pop_front();
  }
  return admitted;
}

/// Moves an entry to a state in which it counts with this many bytes. The caller holds the lock.
void Intake::count(Entry& entry, State state, size_t bytes) {
  if (entry.state == State::kWaiting) --waiting_count_;
  bytes_ += bytes;
  bytes_ -= entry.bytes;
  entry.bytes = bytes;
  entry.state = state;
  entry.since = RunningClock::now();
}

void Intake::arrived(const Guest& guest, size_t bytes) {
  Guests admitted;
  std::shared_ptr<Guest> turned_away;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&guest);
    if (found == entries_.end()) return;
    Lane& lane = bytes <= options_.short_bytes ? short_ : long_;
    count(found->second, State::kQueued, bytes);
    if (lane.queue.size() >= options_.max_queued) {
      turned_away = found->second.guest;
    } else {
      lane.queue.push_back(found->second.guest);
      lane.changed.notify_one();
    }
    admitted = admit();
  }
  if (turned_away) turned_away->turn_away(too_many());
  for (const auto& one : admitted) one->read();
}

void Intake::accepted(const Guest& guest, size_t bytes) {
  Guests admitted;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&guest);
    if (found == entries_.end()) return;
    count(found->second, State::kAccepted, bytes);
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
}

void Intake::leave(const Guest& guest) {
  Guests admitted;
  std::shared_ptr<Guest> last;  // destroyed after the lock is released
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(&guest);
    if (found == entries_.end()) return;
    count(found->second, State::kAccepted, 0);
    last = std::move(found->second.guest);
    entries_.erase(found);
    admitted = admit();
  }
  for (const auto& one : admitted) one->read();
}

void Intake::turn_away_late(RunningClock::time_point now) {
  const auto older = [now](const Entry& entry, int milliseconds) {
    return now - entry.since > std::chrono::milliseconds(milliseconds);
  };
  Guests without_room, slow;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_count_ == 0) return;
    for (const auto& [guest, entry] : entries_) {
      if (entry.state == State::kWaiting && older(entry, options_.max_wait_ms))
        without_room.push_back(entry.guest);
      if (entry.state == State::kArriving && older(entry, options_.slow_sender_ms))
        slow.push_back(entry.guest);
    }
  }
  for (const auto& guest : without_room) guest->turn_away(no_room(options_.budget_bytes));
  for (const auto& guest : slow) guest->turn_away(too_slow(options_.slow_sender_ms));
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
    std::shared_ptr<Guest> guest = std::move(lane.queue.front());
    lane.queue.pop_front();
    lock.unlock();
    guest->work();
    guest.reset();
    lock.lock();
  }
}

}  // namespace shoal
