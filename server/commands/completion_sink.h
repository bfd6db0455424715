#pragma once
#include <condition_variable>
#include <mutex>
#include <string>

#include "runtime/base/deadline.h"
#include "server/commands/request_json.h"

namespace shoal {

/// Collects a request's output for the thread that started the request. The inference loop's thread
/// writes, and one other thread reads.
class CompletionSink : public OpenRequest {
 public:
  CompletionSink(std::vector<int32_t> prompt_token_ids, const SamplingParams& sampling);

  void on_delta(OutputDelta delta) override;
  void on_end(OutputEnd end) override;

  /// Waits for text that has not been returned yet. Returns false once the request has ended and no
  /// text is left.
  bool wait_text(std::string* text);
  /// The text that has not been returned yet, without waiting for any.
  std::string take_text();
  /// Waits until the request ends. Returns false if it has not by then.
  bool ended_by(Deadline deadline);
  /// Waits until the request ends, and returns its whole output. Call it once.
  Completion wait_end();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Completion completion_;
  size_t returned_ = 0;  // bytes of completion_.text that wait_text() has returned
  bool ended_ = false;
};

}  // namespace shoal
