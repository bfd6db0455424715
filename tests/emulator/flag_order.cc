#include "tests/emulator/flag_order.h"

#include <algorithm>
#include <string>

namespace shoal::emulator {

thread_local constinit Actor* acting = nullptr;

namespace {

constexpr size_t kUnit = 16;
constexpr uint64_t kOperations = (uint64_t{1} << 48) - 1;

using Seen = std::map<uint32_t, uint64_t>;

/// What whoever sees a flag learns, by the flag's address.
struct Told {
  std::mutex mutex;
  std::map<uintptr_t, Seen> by_flag;
  std::atomic<uint64_t> forgotten{0};
};
Told& told() {
  static auto& one = *new Told;  // threads of streams may outlive static objects
  return one;
}

uint32_t next_number() {
  static std::atomic<uint32_t> last{0};
  return ++last;
}

std::string text_of(uint64_t moment) {
  return "stream " + std::to_string(moment >> 48) + " in its operation " +
         std::to_string(moment & kOperations);
}

bool is_of_another(uint64_t moment) {
  return moment != 0 && moment >> 48 != acting->moment() >> 48;
}

}  // namespace

Actor::Actor() : number_(next_number()) {}

bool Actor::has_seen(uint64_t moment) const {
  const auto found = seen_.find(static_cast<uint32_t>(moment >> 48));
  return found != seen_.end() && found->second >= (moment & kOperations);
}

void Actor::tell(const uint64_t* flag) const {
  const std::lock_guard<std::mutex> lock(told().mutex);
  Seen& what = told().by_flag[reinterpret_cast<uintptr_t>(flag)];
  what = seen_;
  what[number_] = operation_;
}

void Actor::look(const uint64_t* flag, uint64_t value) {
  const uint64_t forgotten = told().forgotten.load(std::memory_order_acquire);
  if (forgotten_ != forgotten) found_.clear();  // a flag may be another one at the same address
  forgotten_ = forgotten;
  uint64_t& before = found_[flag];
  if (before == value) return;
  before = value;
  const std::lock_guard<std::mutex> lock(told().mutex);
  const auto what = told().by_flag.find(reinterpret_cast<uintptr_t>(flag));
  if (what == told().by_flag.end()) return;
  for (const auto& [stream, operation] : what->second)
    seen_[stream] = std::max(seen_[stream], operation);
}

void Traces::begin() {
  std::call_once(once_, [this] {
    units_ = std::make_unique<Last[]>((bytes_ + kUnit - 1) / kUnit);
    begun_.store(true, std::memory_order_release);
  });
}

void Traces::read(size_t at, size_t bytes, const Place& place) {
  if (acting == nullptr) return;
  for (size_t unit = at / kUnit; unit <= (at + bytes - 1) / kUnit; ++unit) {
    Last& last = units_[unit];
    const uint64_t written = last.written.load(std::memory_order_relaxed);
    if (is_of_another(written) && !acting->has_seen(written))
      report(Fault::kReadTooEarly, place, text_of(written) + " wrote it, and set no flag since");
    last.read.store(acting->moment(), std::memory_order_relaxed);
  }
}

void Traces::write(size_t at, size_t bytes, const Place& place) {
  if (acting == nullptr) return;
  for (size_t unit = at / kUnit; unit <= (at + bytes - 1) / kUnit; ++unit) {
    Last& last = units_[unit];
    const uint64_t read = last.read.load(std::memory_order_relaxed);
    // A flag of the same operation is too early.
    if (is_of_another(read) && !acting->has_seen(read + 1))
      report(Fault::kReusedTooEarly, place, text_of(read) + " may still read it");
    last.written.store(acting->moment(), std::memory_order_relaxed);
  }
}

void forget_flags(const void* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const std::lock_guard<std::mutex> lock(told().mutex);
  auto& all = told().by_flag;
  all.erase(all.lower_bound(first), all.lower_bound(first + bytes));
  ++told().forgotten;
}

}  // namespace shoal::emulator
