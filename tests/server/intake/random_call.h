#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "server/intake/intake.h"
#include "server/intake/live_request.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {

/// The whole way in behind a front: the budget, the threads that work on requests, the queue and
/// the loop. Instead of ranks there is a script, which loses every 50th step, and whose steps can
/// be made to wait.
class WayIn {
 public:
  explicit WayIn(bool steps_wait)
      : steps_wait_(steps_wait),
        loop(
            test_model(), kFourSeats, [this](const StepPlan& plan) { return step(plan); },
            {.queue = {.requests = kPlaces}}, state->book()) {
    state->set_ready(&test_model(), &loop, {});
  }
  ~WayIn() {
    let_steps_pass();
    intake.stop();
  }
  WayIn(const WayIn&) = delete;
  WayIn& operator=(const WayIn&) = delete;

  static constexpr int64_t kPlaces = 24;  ///< for requests that run or wait for the engine

  /// Lets the step pass that waits, if one does, and returns when the next one waits or nothing
  /// runs.
  void pass_one_step() {
    {
      std::unique_lock lock(mutex_);
      if (standing_) {
        standing_ = false;
        changed_.notify_all();
      }
    }
    settle();
  }
  /// Returns when a step waits, or nothing runs.
  void settle() {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (standing_ || !steps_wait_) return;
      }
      const EngineLoad load = loop.load();
      if (load.running + load.waiting == 0) return;
      std::this_thread::yield();
    }
  }
  /// No step waits from now on.
  void let_steps_pass() {
    const std::lock_guard lock(mutex_);
    steps_wait_ = standing_ = false;
    changed_.notify_all();
  }

  /// Everything that requests take has been given back. Nobody keeps a call any more.
  void expect_empty() {
    EXPECT_TRUE(intake.wait_until_empty(Deadline::after_ms(0)));
    EXPECT_EQ(shared_intake.use_count(), 1) << "a request is still kept";
    EXPECT_EQ(intake.counted_bytes(), 0u);
    const EngineLoad load = loop.load();
    EXPECT_EQ(load.running + load.waiting, 0);
    EXPECT_EQ(load.used_kv_blocks, 0);
    EXPECT_EQ(load.prompt_tokens, 0);
    EXPECT_EQ(loop.queued_bytes(), 0);
  }
  /// Nothing takes more than it may.
  void expect_within_limits() const {
    EXPECT_LE(intake.counted_bytes(), intake.budget_bytes());
    const EngineLoad load = loop.load();
    EXPECT_LE(load.running + load.waiting, kPlaces);
  }

  const std::shared_ptr<ServingState> state =
      std::make_shared<ServingState>(std::vector<std::string>{"oracle"});
  const std::shared_ptr<Intake> shared_intake = std::make_shared<Intake>(
      Intake::Options{.budget_bytes = 4 * kMaxRequestBytes, .max_waiting = 16, .max_queued = 12},
      state);
  Intake& intake = *shared_intake;
  std::array<std::atomic<int>, kNotTakenReasons> refused = {};  ///< by why
  std::atomic<int> answered = 0, cancelled = 0, gone = 0, evicted_from_queue = 0, lost = 0;
  std::atomic<bool> may_refuse_anybody = false;  ///< because time is up, or the server shuts down

 private:
  static constexpr EngineLimits kFourSeats = {
      .max_num_seqs = 4, .max_num_batched_tokens = 64, .kv_blocks = 64, .max_model_len = 200};

  Result<StepOutcome> step(const StepPlan& plan) {
    std::unique_lock lock(mutex_);
    standing_ = steps_wait_;
    changed_.wait(lock, [this] { return !standing_; });
    if (++steps_ % 50 == 0) {
      ++lost;
      return StepOutcome(Status::error(Code::kUnavailable, "a rank was lost"), false, true);
    }
    return Script{}(plan);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool steps_wait_, standing_ = false;
  int steps_ = 0;

 public:
  InferenceLoop loop;
};

/// A call that behaves like a call of a front, whatever happens to it at the same time. It counts
/// how it ends, and checks that it ends exactly once.
class RandomCall final : public FrontCall, public std::enable_shared_from_this<RandomCall> {
 public:
  RandomCall(WayIn& way, std::string client, int number)
      : way_(way), client_(std::move(client)), id_(cat("call ", number)) {}

  int64_t max_tokens = 1;
  bool as_text = false;  ///< the prompt, so that it is tokenized
  size_t answer_bytes = 0;
  Deadline deadline = Deadline::infinite();

  const std::string& client() const { return client_; }
  void enter() { way_.intake.enter(shared_from_this(), client_); }
  void arrive(size_t bytes) { way_.intake.arrived(*this, bytes); }
  /// Its client asks for the end, and waits for it.
  void cancel() {
    std::shared_ptr<LiveRequest> request;
    {
      const std::lock_guard lock(mutex_);
      request = request_;
    }
    if (request) request->give_up();
  }
  /// Its client is gone.
  void hang_up() {
    if (end()) ++way_.gone;
  }

  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool readable() const {
    const std::lock_guard lock(mutex_);
    return readable_ && !ended_;
  }
  void wait_until_readable() { wait(readable_); }
  void wait_until_worked() { wait(worked_); }
  void wait_until_ended() { wait(ended_); }

  void read() override { set(&readable_); }
  uint64_t received() override { return 0; }
  void work() override {
    submit();
    set(&worked_);
  }
  void reject(const RefusedRequest& why) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(std::exchange(rejected_, true)) << id_ << " is rejected twice";
      EXPECT_FALSE(request_) << id_ << " is rejected after its submission";
    }
    refuse(why);
  }
  void output_ready() override {
    std::shared_ptr<LiveRequest> request;
    {
      const std::lock_guard lock(mutex_);
      request = request_;
    }
    const LiveRequest::Output output = request->take();
    if (!output.end) return;
    EXPECT_FALSE(std::exchange(engine_ended_, true)) << id_ << " ends twice";
    request->release_id();
    if (output.end->refused) {
      ++way_.evicted_from_queue;
      return refuse(*output.end->refused);
    }
    EXPECT_TRUE(output.end->status.ok()) << output.end->status.to_string();
    if (!end()) return;
    ++(output.end->finish.reason == FinishReason::kCancelled ? way_.cancelled : way_.answered);
  }
  void drop_if_slow(std::chrono::milliseconds) override {}

 private:
  void submit() {
    if (const RefusedRequest none = way_.intake.keep_answer(*this, answer_bytes); !none.ok())
      return refuse(none);
    const auto request = LiveRequest::make(way_.shared_intake, id_, shared_from_this());
    {
      const std::lock_guard lock(mutex_);
      if (giving_back_) return;
      EXPECT_FALSE(rejected_ || request_) << id_;
      request_ = request;
    }
    GenerationRequest asks;
    if (as_text) {
      asks.prompt = "abc";
    } else {
      asks.prompt_ids = {4, 5, 6};
    }
    asks.max_tokens = max_tokens;
    asks.ignore_eos = true;
    const Result<LiveRequest::Accepted, RefusedRequest> accepted =
        request->submit(std::move(asks), {client_, deadline});
    if (!accepted.ok()) refuse(accepted.error());
  }

  /// A client with only one request at a time must never be refused because there are too many
  /// requests.
  void refuse(const RefusedRequest& why) {
    if (!end()) return;
    ++way_.refused[static_cast<size_t>(why.why)];
    EXPECT_TRUE(why.retry_ms > 0 || why.why == NotTaken::kInvalid) << reason_of(why.why);
    if (way_.may_refuse_anybody || client_ == "greedy") return;
    EXPECT_NE(why.why, NotTaken::kQueueFull) << id_ << " of " << client_;
    EXPECT_NE(why.why, NotTaken::kShareExceeded) << id_ << " of " << client_;
  }

  /// Gives everything back. Returns false if it had ended.
  bool end() {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(giving_back_, true)) return false;
    }
    way_.intake.leave(*this);
    set(&ended_);
    return true;
  }

  void set(bool* what) {
    const std::lock_guard lock(mutex_);
    *what = true;
    changed_.notify_all();
  }
  void wait(const bool& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return what || ended_; });
  }

  WayIn& way_;
  const std::string client_, id_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<LiveRequest> request_;  // from its submission on
  bool readable_ = false, worked_ = false, rejected_ = false;
  bool giving_back_ = false, ended_ = false;
  bool engine_ended_ = false;  // only output_ready() uses it, which is not called concurrently
};

}  // namespace shoal
