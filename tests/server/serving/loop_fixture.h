#pragma once
#include <atomic>
#include <functional>
#include <future>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "server/serving/inference_loop.h"

namespace shoal {

/// Collects the output of a request, and counts violations of the contract of OpenRequest.
class CollectingSink : public OpenRequest {
 public:
  void on_delta(OutputDelta delta) override {
    EXPECT_FALSE(ended_.load()) << "a delta after the end";
    EXPECT_FALSE(delta.tokens.empty());
    for (const SampledToken& token : delta.tokens) tokens.push_back(token.token_id);
    texts.push_back(delta.text);
    if (after_delta) after_delta();
  }
  void on_lost(const Status& why) override { losses.push_back(why.to_string()); }
  void on_end(OutputEnd reported) override {
    EXPECT_FALSE(ended_.exchange(true)) << "a second end";
    end = reported;
    promise_.set_value();
  }
  /// Waits for the end. After that the members may be read.
  CollectingSink& wait() {
    promise_.get_future().wait();
    return *this;
  }
  bool ended() const { return ended_; }
  std::string text() const {
    std::string all;
    for (const std::string& part : texts) all += part;
    return all;
  }

  std::vector<int32_t> tokens;
  std::vector<std::string> texts;
  std::vector<std::string> losses;  ///< why the workers were lost, for each time
  OutputEnd end;
  std::function<void()> after_delta;

 private:
  std::atomic<bool> ended_ = false;
  std::promise<void> promise_;
};

inline constexpr EngineLimits kLimits = {
    .max_num_seqs = 8, .max_num_batched_tokens = 64, .kv_blocks = 64, .max_model_len = 200};

inline ResolvedRequest request(int32_t max_tokens, std::vector<std::string> stop = {}) {
  ResolvedRequest resolved;
  resolved.engine.prompt = {4, 5, 6};
  resolved.engine.max_tokens = max_tokens;
  resolved.engine.eos_token_ids = {1};
  resolved.stop = std::move(stop);
  return resolved;
}

/// Workers that read from a script, by request id: output token i of a request is element i of its
/// list. After the end of the list, and for requests without one, the token is `filler`.
struct Script {
  std::map<uint64_t, std::vector<int32_t>> outputs;
  int32_t filler = 40;
  size_t prompt_tokens = 3;

  Result<StepOutcome> operator()(const StepPlan& plan) const {
    StepResult result;
    result.step = plan.step;
    for (const SequenceStep& step : plan.sequences) {
      if (!step.sample) continue;
      const size_t index =
          static_cast<size_t>(step.first_position) + step.token_ids.size() - prompt_tokens;
      const auto it = outputs.find(step.id);
      const bool scripted = it != outputs.end() && index < it->second.size();
      result.tokens.push_back({step.id, scripted ? it->second[index] : filler, 0, 0, {}});
    }
    return StepOutcome(std::move(result));
  }
};

/// Holds a step until the test calls open().
class Gate {
 public:
  void pass() {
    entered_.set_value();
    open_.get_future().wait();
  }
  void wait_entered() { entered_.get_future().wait(); }
  void open() { open_.set_value(); }

 private:
  std::promise<void> entered_, open_;
};

}  // namespace shoal
