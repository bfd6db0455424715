#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "runtime/base/cpu_budget.h"
#include "runtime/base/status.h"

namespace shoal {

/// Limits the cost of one encode or decode, whatever the tokenizer file asks for. It counts the
/// bytes of text created on the way and the CPU time that this thread spends in regexes, and knows
/// whether anyone still wants the result. Not thread-safe.
class WorkLimit {
 public:
  WorkLimit() = default;
  /// No ids are needed once there are more than max_ids, and nothing once *given_up is true (which
  /// may be null).
  WorkLimit(size_t max_ids, const std::atomic<bool>* given_up)
      : max_ids_(max_ids), given_up_(given_up) {}

  static constexpr size_t kMaxBytes = size_t{512} << 20;
  static constexpr int64_t kMaxCpuNs = 5'000'000'000;

  bool is_enough(size_t ids) const { return ids > max_ids_; }
  /// CANCELLED if nobody wants the result any more.
  Status check_given_up() const {
    return given_up_ != nullptr && *given_up_ ? nobody_waits() : Status();
  }

  /// RESOURCE_EXHAUSTED if more than kMaxBytes have been taken in all.
  Status take_bytes(size_t bytes) {
    SHOAL_RETURN_IF_ERROR(check_given_up());
    if (bytes > bytes_left_) return too_much_text();
    bytes_left_ -= bytes;
    return {};
  }
  /// The same check for memory that is freed again at once, and so is not counted.
  Status check_bytes(size_t bytes) const {
    return bytes > bytes_left_ ? too_much_text() : Status();
  }

  /// Counts regex work (start positions tried) and looks at the budget every kPositionsPerLook
  /// positions. RESOURCE_EXHAUSTED after kMaxCpuNs.
  Status count_regex_work(size_t positions) {
    positions_ += positions;
    if (positions_ < kPositionsPerLook) return {};
    positions_ = 0;
    SHOAL_RETURN_IF_ERROR(check_given_up());
    return cpu_.spent() ? too_slow() : Status();
  }

 private:
  static constexpr size_t kPositionsPerLook = 4096;

  static Status too_much_text() {
    return Status::error(
        Code::kResourceExhausted,
        "tokenizer: this text needs more than 512 MiB of working memory; send less text");
  }
  static Status too_slow() {
    return Status::error(
        Code::kResourceExhausted,
        "tokenizer: the regexes of tokenizer.json took more than 5 s on this text; send less text");
  }

  static Status nobody_waits() {
    return Status::error(Code::kCancelled, "tokenizer: the text was given up before its end");
  }

  size_t max_ids_ = std::numeric_limits<size_t>::max();
  const std::atomic<bool>* given_up_ = nullptr;
  size_t bytes_left_ = kMaxBytes;
  size_t positions_ = 0;
  CpuBudget cpu_{kMaxCpuNs};
};

}  // namespace shoal
