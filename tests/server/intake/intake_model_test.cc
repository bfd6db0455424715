// The Intake beside a model of it that is as simple as its description: after each of many random
// calls both must have let the same requests be read, have refused the same ones for the same
// reason, and count the same bytes.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/intake/intake.h"
#include "server/serving/generation_request.h"
#include "tests/moved_clock.h"
#include "tests/server/intake/lone_intake.h"

namespace shoal {
namespace {

constexpr size_t kBudget = 4 * kMaxRequestBytes, kMaxWaiting = 6;
constexpr int kMaxWaitS = 10, kSlowSenderS = 5;

class ModelledCall final : public FrontCall {
 public:
  void read() override { ++reads; }
  uint64_t received() override { return 0; }
  void work() override {}
  void reject(const RefusedRequest& why) override {
    EXPECT_FALSE(refused);
    refused = why.why;
  }
  void output_ready() override {}
  void drop_if_slow(std::chrono::milliseconds) override {}

  int reads = 0;
  std::optional<NotTaken> refused;
};

class IntakeModel {
 public:
  enum class State { kWaiting, kArriving, kRead, kGone };
  struct Call {
    std::string client;
    State state = State::kWaiting;
    size_t bytes = 0, answer = 0;
    int since_s = 0;
    int reads = 0;
    std::optional<NotTaken> refused = {};
  };

  void enter(const std::string& client) {
    const auto waiting = waiting_of();
    bool full = false;
    if (!draining_ && count_waiting() >= kMaxWaiting) {
      const auto most = std::max_element(waiting.begin(), waiting.end(), [&](auto& a, auto& b) {
        return std::pair(a.second, -turns_[a.first]) < std::pair(b.second, -turns_[b.first]);
      });
      const int own = waiting.contains(client) ? waiting.at(client) : 0;
      full = most->first == client || most->second <= static_cast<int>(kMaxWaiting) / 2 ||
             most->second - 1 < own + 1;
      if (!full) latest_of(most->first)->refused = NotTaken::kShareExceeded;
    }
    calls.push_back({.client = client, .since_s = now_s});
    if (draining_ || full) {
      calls.back().refused = draining_ ? NotTaken::kDraining : NotTaken::kQueueFull;
      calls.back().state = State::kGone;
      return;
    }
    if (!waiting_of_before(client)) turns_[client] = ++last_turn_;
    admit();
  }

  void move(Call* call, State state, size_t bytes) {
    call->state = state;
    call->bytes = bytes;
    call->since_s = now_s;
    if (state == State::kGone) call->answer = 0;
    admit();
  }

  bool keep_answer(Call* call, size_t bytes) {
    size_t all = 0, theirs = 0;
    for (const Call& other : calls) {
      all += other.answer;
      if (other.client == call->client) theirs += other.answer;
    }
    const size_t of_one = kBudget - std::min(kMaxAnswerBytes, kBudget / 2);
    if ((theirs > 0 && theirs + bytes > of_one) || (all > 0 && all + bytes > kBudget)) return false;
    call->answer = bytes;
    return true;
  }

  void reject_late() {
    if (count_waiting() == 0) return;
    for (Call& call : calls) {
      if (call.refused) continue;
      const int age_s = now_s - call.since_s;
      if (call.state == State::kWaiting && age_s > kMaxWaitS) call.refused = NotTaken::kNoMemory;
      if (call.state == State::kArriving && age_s > kSlowSenderS)
        call.refused = NotTaken::kQueueFull;
    }
  }

  void drain() {
    draining_ = true;
    for (Call& call : calls)
      if (!call.refused && (call.state == State::kWaiting || call.state == State::kArriving))
        call.refused = NotTaken::kDraining;
  }

  size_t bytes() const {
    size_t sum = 0;
    for (const Call& call : calls) sum += call.bytes;
    return sum;
  }

  std::vector<Call> calls;
  int now_s = 0;

 private:
  static bool waits(const Call& call) { return call.state == State::kWaiting && !call.refused; }
  std::map<std::string, int> waiting_of() const {
    std::map<std::string, int> waiting;
    for (const Call& call : calls)
      if (waits(call)) ++waiting[call.client];
    return waiting;
  }
  size_t count_waiting() const {
    return static_cast<size_t>(std::count_if(calls.begin(), calls.end(), waits));
  }
  /// Whether another call of the client waits besides the last one of all.
  bool waiting_of_before(const std::string& client) const {
    return std::any_of(calls.begin(), calls.end() - 1,
                       [&](const Call& call) { return call.client == client && waits(call); });
  }
  Call* latest_of(const std::string& client) {
    return &*std::find_if(calls.rbegin(), calls.rend(),
                          [&](const Call& call) { return call.client == client && waits(call); });
  }

  /// 0: the client has no request that is arriving, and has room for one. 1: it has room for one.
  /// 2: neither.
  int rank_of(const std::string& client) const {
    size_t held = 0;
    bool arrives = false;
    for (const Call& call : calls) {
      if (call.client != client) continue;
      held += call.bytes;
      arrives |= call.state == State::kArriving;
    }
    if (held + kMaxRequestBytes > kBudget / 2) return 2;
    return arrives ? 1 : 0;
  }

  void admit() {
    while (bytes() + kMaxRequestBytes <= kBudget) {
      const bool last = bytes() > 0 && bytes() + 2 * kMaxRequestBytes > kBudget;
      std::optional<std::pair<std::pair<int, int>, std::string>> next;
      for (const auto& [client, waiting] : waiting_of()) {
        const std::pair order{rank_of(client), turns_[client]};
        if (last && order.first == 2) continue;
        if (!next || order < next->first) next = {order, client};
      }
      if (!next) return;
      turns_[next->second] = ++last_turn_;
      Call& call = *std::find_if(calls.begin(), calls.end(), [&](const Call& one) {
        return one.client == next->second && waits(one);
      });
      call.state = State::kArriving;
      call.bytes = kMaxRequestBytes;
      call.since_s = now_s;
      ++call.reads;
    }
  }

  std::map<std::string, int> turns_;  // when it is each client's turn, lowest first
  int last_turn_ = 0;
  bool draining_ = false;
};

/// An Intake and its model, to which the same happens.
class Both {
 public:
  explicit Both(uint32_t seed) : random_(seed) {}

  void act() {
    using State = IntakeModel::State;
    const uint32_t what = random_() % 16;
    std::vector<size_t> here;
    for (size_t i = compared_; i < calls_.size(); ++i)
      if (model_.calls[i].state != State::kGone) here.push_back(i);
    if (here.empty() || what < 5) return enter(std::string(1, "aaaabcd"[random_() % 7]));
    if (what == 5) return pass_time();
    const size_t i = here[random_() % here.size()];
    IntakeModel::Call& call = model_.calls[i];
    if (what < 8) return leave(i);
    if (call.state == State::kArriving) {
      const size_t bytes =
          random_() % 4 == 0 ? kMaxRequestBytes - random_() % 1000 : random_() % 5000;
      model_.move(&call, State::kRead, bytes);
      intake_.arrived(*calls_[i], bytes);
    } else if (call.state == State::kRead && call.answer == 0 && what < 12) {
      const size_t bytes = size_t{1 + random_() % 40} << 20;
      EXPECT_EQ(intake_.keep_answer(*calls_[i], bytes).ok(), model_.keep_answer(&call, bytes)) << i;
    } else if (call.state == State::kRead) {
      const size_t bytes = call.bytes / 2;
      model_.move(&call, State::kRead, bytes);
      intake_.accepted(*calls_[i], bytes);
    }
  }

  void drain() {
    model_.drain();
    intake_.drain();
  }

  void end() {
    for (size_t i = 0; i < calls_.size(); ++i)
      if (model_.calls[i].state != IntakeModel::State::kGone) leave(i);
    compare();
    EXPECT_EQ(intake_.counted_bytes(), 0u);
    EXPECT_TRUE(intake_.wait_until_empty(Deadline::after_ms(0)));
  }

  /// Those that were refused leave, as a front's calls do.
  void compare() {
    ASSERT_EQ(intake_.counted_bytes(), model_.bytes());
    for (size_t i = compared_; i < calls_.size(); ++i) {
      const IntakeModel::Call& call = model_.calls[i];
      ASSERT_EQ(calls_[i]->reads, call.reads) << "call " << i << " of " << call.client;
      ASSERT_EQ(calls_[i]->refused, call.refused) << "call " << i << " of " << call.client;
    }
    for (size_t i = compared_; i < calls_.size(); ++i)
      if (model_.calls[i].refused && model_.calls[i].state != IntakeModel::State::kGone) leave(i);
    while (compared_ < calls_.size() && model_.calls[compared_].state == IntakeModel::State::kGone)
      ++compared_;
  }

 private:
  void enter(const std::string& client) {
    calls_.push_back(std::make_shared<ModelledCall>());
    model_.enter(client);
    intake_.enter(calls_.back(), client);
  }
  void leave(size_t i) {
    model_.move(&model_.calls[i], IntakeModel::State::kGone, 0);
    intake_.leave(*calls_[i]);
  }
  void pass_time() {
    MovedClock::advance(1);
    ++model_.now_s;
    model_.reject_late();
    intake_.reject_late(RunningClock::now());
  }

  const MovedClock clock_;
  std::mt19937 random_;
  LoneIntake intake_{{.budget_bytes = kBudget,
                      .max_waiting = kMaxWaiting,
                      .max_wait_ms = kMaxWaitS * 1000,
                      .slow_sender_ms = kSlowSenderS * 1000,
                      .stopped_ms = 1'000'000'000}};
  IntakeModel model_;
  std::vector<std::shared_ptr<ModelledCall>> calls_;
  size_t compared_ = 0;  // all before it are gone
};

TEST(IntakeModel, AgreesWithTheIntakeWhateverHappens) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    Both both(seed);
    for (int i = 0; i < 500; ++i) {
      i == 400 ? both.drain() : both.act();
      both.compare();
      ASSERT_FALSE(HasFailure()) << "after " << i << " calls";
    }
    both.end();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace shoal
