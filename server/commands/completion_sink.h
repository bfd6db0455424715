#pragma once
#include <condition_variable>
#include <mutex>
#include <string>

#include "server/commands/request_json.h"

namespace shoal {

/// Collects a request's output for the thread that started it. The loop's thread writes, one other
/// reads.
class CompletionSink : public OutputSink {
 public:
  CompletionSink(std::vector<int32_t> prompt_token_ids, bool with_logprobs);

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;

  /// Waits for text that was not returned before; false once the request has ended and nothing is
  /// left.
  bool wait_text(std::string* text);
  /// Waits for the end. Call once.
  Completion wait_end();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Completion completion_;
  size_t returned_ = 0;  // bytes of completion_.text
  bool ended_ = false;
};

}  // namespace shoal
