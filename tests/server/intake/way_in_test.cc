// 100,000 random lives of calls on the way in: through the budget, the threads that work on them,
// the queue and the loop, without a protocol and without ranks. However a life goes, it ends
// exactly once and gives everything back. A client that has one request at a time is never refused
// or evicted because another client has many.
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/breadth.h"
#include "tests/guard.h"
#include "tests/server/intake/random_call.h"

namespace shoal {
namespace {

constexpr int kModestClients = 5;
using WayInCalls = std::vector<std::shared_ptr<RandomCall>>;

std::shared_ptr<RandomCall> new_call(WayIn& way, const std::string& client, int number,
                                     std::mt19937& random) {
  auto call = std::make_shared<RandomCall>(way, client, number);
  call->max_tokens = 1 + static_cast<int64_t>(random() % 6);
  call->as_text = random() % 4 == 0;
  if (random() % 8 == 0) call->answer_bytes = size_t{1 + random() % 8} << 20;
  if (random() % 16 == 0) call->deadline = Deadline::after_ms(0);
  return call;
}

/// More than is kept of it once it is accepted.
size_t random_bytes(std::mt19937& random) {
  return random() % 4 == 0 ? (size_t{128} << 10) + random() % (1 << 20) : 4096 + random() % 4096;
}

/// One thread draws what happens next. The threads of the way in move only when it lets them.
class OneLifeAfterAnother {
 public:
  OneLifeAfterAnother(uint32_t seed, int calls) : random_(seed), calls_(calls) {}

  void run() {
    while (begun_ < calls_ && !testing::Test::HasFailure()) {
      act();
      way.settle();
      way.expect_within_limits();
      std::erase_if(open_, [](const auto& call) { return call->ended(); });
    }
    drain();
  }

  WayIn way{true};

 private:
  void act() {
    const uint32_t what = random_() % 512;
    if (what == 0) return expire();
    if (what < 32) return pick()->cancel();
    if (what < 64) return pick()->hang_up();
    if (what < 160) return way.pass_one_step();
    if (what < 320) return begin();
    const auto next = std::find_if(open_.begin(), open_.end(), [this](const auto& call) {
      return call->readable() && !arrived_.contains(call.get());
    });
    if (next == open_.end()) return;
    arrived_.insert(next->get());
    (*next)->arrive(random_bytes(random_));
    (*next)->wait_until_worked();
  }

  std::shared_ptr<RandomCall> pick() {
    if (open_.empty()) begin();
    return open_[random_() % open_.size()];
  }

  void begin() {
    const uint32_t modest = random_() % (4 * kModestClients);
    const std::string client = modest < kModestClients ? cat("modest ", modest) : "greedy";
    const bool has_one = std::any_of(open_.begin(), open_.end(), [&](const auto& call) {
      return call->client() == client && !call->ended();
    });
    if (open_.size() >= 64 || (client != "greedy" && has_one)) return;
    open_.push_back(new_call(way, client, begun_++, random_));
    arrived_.erase(open_.back().get());  // another one may have been there
    open_.back()->enter();
  }

  void expire() {
    way.may_refuse_anybody = true;
    way.intake.reject_late(RunningClock::now() + std::chrono::seconds(11));
    way.state->end_late();
    way.may_refuse_anybody = false;
  }

  void drain() {
    way.may_refuse_anybody = true;
    way.intake.drain();
    open_.push_back(new_call(way, "late", calls_, random_));
    open_.back()->enter();
    EXPECT_TRUE(open_.back()->ended());
    way.let_steps_pass();
    for (const auto& call : open_) call->wait_until_ended();
    way.intake.stop();
    EXPECT_TRUE(way.loop.drain(Deadline::after_ms(kGuardMs)));
    open_.clear();
    way.expect_empty();
    int ends = way.answered + way.cancelled + way.gone;
    for (const std::atomic<int>& refused : way.refused) ends += refused;
    EXPECT_EQ(ends, begun_ + 1);
  }

  std::mt19937 random_;
  const int calls_;
  int begun_ = 0;
  WayInCalls open_;
  std::set<const RandomCall*> arrived_;
};

TEST(WayIn, EveryLifeEndsOnceAndGivesEverythingBack) {
  int answered = 0, cancelled = 0, gone = 0, full = 0, evicted = 0, from_queue = 0, draining = 0,
      lost = 0;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    OneLifeAfterAnother life(seed, narrow_breadth() ? 500 : 5'000);
    life.run();
    if (HasFailure()) return;
    const auto refused = [&](NotTaken why) {
      return life.way.refused[static_cast<size_t>(why)].load();
    };
    answered += life.way.answered;
    cancelled += life.way.cancelled;
    gone += life.way.gone;
    full += refused(NotTaken::kQueueFull);
    evicted += refused(NotTaken::kShareExceeded);
    from_queue += life.way.evicted_from_queue;
    draining += refused(NotTaken::kDraining);
    lost += life.way.lost;
  }
  for (const int seen : {answered, cancelled, gone, full, evicted, from_queue, draining, lost})
    EXPECT_GT(seen, 0) << "each kind of end is among them";
}

/// Many calls of one client at the same time, whatever becomes of each.
void live_greedily(WayIn& way, int first, int calls) {
  std::mt19937 random(static_cast<uint32_t>(first));
  WayInCalls open;
  for (int i = 0; i < calls; ++i) {
    open.push_back(new_call(way, "greedy", first + i, random));
    open.back()->enter();
    if (open.size() < 12) continue;
    for (const auto& call : open) {
      const uint32_t what = random() % 16;
      if (what == 0) call->hang_up();
      call->wait_until_readable();
      call->arrive(random_bytes(random));
      if (what == 1) call->hang_up();
      if (what == 2) call->cancel();
    }
    for (const auto& call : open) call->wait_until_ended();
    open.clear();
  }
  for (const auto& call : open) call->hang_up();
}

void live_modestly(WayIn& way, int first, int calls) {
  std::mt19937 random(static_cast<uint32_t>(first));
  for (int i = 0; i < calls; ++i) {
    const auto call = new_call(way, cat("modest ", first), first + i, random);
    call->enter();
    call->wait_until_readable();
    call->arrive(random_bytes(random));
    if (random() % 8 == 0) call->cancel();
    if (random() % 8 == 0) call->hang_up();
    call->wait_until_ended();
  }
}

TEST(WayIn, EightThreadsEndTheirLivesOnceToo) {
  constexpr int kGreedyThreads = 3;
  const int calls_of_each = narrow_breadth() ? 625 : 6'250;
  WayIn way(false);
  std::vector<std::thread> threads;
  for (int i = 0; i < kGreedyThreads + kModestClients; ++i)
    threads.emplace_back(i < kGreedyThreads ? live_greedily : live_modestly, std::ref(way),
                         i * calls_of_each, calls_of_each);
  for (std::thread& thread : threads) thread.join();
  way.intake.stop();
  EXPECT_TRUE(way.loop.drain(Deadline::after_ms(kGuardMs)));
  way.expect_empty();
  int ends = way.answered + way.cancelled + way.gone;
  for (const std::atomic<int>& refused : way.refused) ends += refused;
  EXPECT_EQ(ends, static_cast<int>(threads.size()) * calls_of_each);
  EXPECT_GT(way.answered, 0);
  EXPECT_GT(way.lost, 0);
}

}  // namespace
}  // namespace shoal
