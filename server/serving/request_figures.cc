#include "server/serving/request_figures.h"

#include <chrono>
#include <utility>
#include <vector>

namespace shoal {
namespace {

// The bounds of all ranges but those of a step's seconds are vLLM's (vllm/v1/metrics/loggers.py),
// so that its dashboards show the same thing for both servers.
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                               0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                               20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kRequestBounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                              512, 1024, 2048, 4096, 8192, 16384};
/// From a decode of a small model to a prompt on a slow machine.
const std::vector<double> kStepBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                         0.1,    0.25,  0.5,    1,     2.5,  5,     10};

/// 1, 2, 5, 10, 20, 50 and so on, up to `most`.
std::vector<double> length_bounds(int32_t most) {
  std::vector<double> bounds;
  for (int64_t ten = 1; ten <= most; ten *= 10) {
    for (const int64_t bound : {ten, 2 * ten, 5 * ten}) {
      if (bound <= most) bounds.push_back(static_cast<double>(bound));
    }
  }
  return bounds;
}

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

const char* end_name(RequestEnd how) {
  switch (how) {
    case RequestEnd::kStop:
      return "stop";
    case RequestEnd::kLength:
      return "length";
    case RequestEnd::kAbort:
      return "abort";
    case RequestEnd::kError:
      return "error";
  }
  return "unknown";
}

std::optional<double> RequestTimes::queue_s() const {
  if (!begun) return std::nullopt;
  return seconds(*begun - queued);
}

std::optional<double> RequestTimes::first_token_s() const {
  if (!first_token) return std::nullopt;
  return seconds(*first_token - arrived);
}

RequestCounts::RequestCounts(int32_t max_model_len)
    : time_to_first_token(kFirstTokenBounds),
      inter_token(kTokenBounds),
      per_output_token(kTokenBounds),
      whole(kRequestBounds),
      queue(kRequestBounds),
      prefill(kRequestBounds),
      decode(kRequestBounds),
      prompt_length(length_bounds(max_model_len)),
      output_length(length_bounds(max_model_len)),
      step_tokens(kStepTokenBounds),
      step_seconds(kStepBounds) {}

void RequestCounts::step(int64_t tokens, double took) {
  step_tokens.add(static_cast<double>(tokens));
  step_seconds.add(took);
}

void RequestCounts::token(RequestTimes* times, int32_t prompt, Clock::time_point now) {
  ++generation_tokens;
  if (std::exchange(times->lost, false)) ++recovered;
  if (times->first_token) {
    inter_token.add(seconds(now - *times->last_token));
  } else {
    prompt_tokens += prompt;
    times->first_token = now;
    time_to_first_token.add(*times->first_token_s());
  }
  times->last_token = now;
}

void RequestCounts::end(RequestEnd how, const RequestTimes& times, int32_t prompt, int32_t output,
                        Clock::time_point now) {
  ++ended[static_cast<size_t>(how)];
  const bool by_itself = how == RequestEnd::kStop || how == RequestEnd::kLength;
  if (!by_itself || !times.begun || !times.first_token) return;
  const double decoding = seconds(*times.last_token - *times.first_token);
  whole.add(seconds(now - times.arrived));
  queue.add(*times.queue_s());
  prefill.add(seconds(*times.first_token - *times.begun));
  decode.add(decoding);
  if (output > 1) per_output_token.add(decoding / (output - 1));
  prompt_length.add(prompt);
  output_length.add(output);
}

}  // namespace shoal
