#include "server/commands/completion_sink.h"

#include <iterator>
#include <utility>

#include "runtime/base/wait.h"

namespace shoal {

CompletionSink::CompletionSink(std::vector<int32_t> prompt_token_ids,
                               const SamplingParams& sampling) {
  completion_.prompt_token_ids = std::move(prompt_token_ids);
  completion_.sampling = sampling;
}

void CompletionSink::on_delta(OutputDelta delta) {
  const std::lock_guard lock(mutex_);
  completion_.tokens.insert(completion_.tokens.end(), std::make_move_iterator(delta.tokens.begin()),
                            std::make_move_iterator(delta.tokens.end()));
  completion_.text += delta.text;
  changed_.notify_one();
}

void CompletionSink::on_end(OutputEnd end) {
  const std::lock_guard lock(mutex_);
  completion_.end = std::move(end);
  ended_ = true;
  changed_.notify_one();
}

bool CompletionSink::wait_text(std::string* text) {
  {
    std::unique_lock lock(mutex_);
    wait_until_ready(changed_, lock,
                     [this] { return ended_ || completion_.text.size() > returned_; });
  }
  *text = take_text();
  return !text->empty();
}

std::string CompletionSink::take_text() {
  const std::lock_guard lock(mutex_);
  std::string text = completion_.text.substr(returned_);
  returned_ = completion_.text.size();
  return text;
}

bool CompletionSink::ended_by(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return wait_until_ready(changed_, lock, deadline, [this] { return ended_; });
}

Completion CompletionSink::wait_end() {
  std::unique_lock lock(mutex_);
  wait_until_ready(changed_, lock, [this] { return ended_; });
  return std::move(completion_);
}

}  // namespace shoal
