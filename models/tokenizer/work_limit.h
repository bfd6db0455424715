#pragma once
#include <cstddef>
#include <cstdint>
#include <time.h>

#include "runtime/base/status.h"

namespace shoal {

/// Limits the cost of one encode or decode, whatever the tokenizer file asks for. It counts the
/// bytes of text created on the way and the CPU time that this thread spends in regexes. Not
/// thread-safe.
class WorkLimit {
 public:
  static constexpr size_t kMaxBytes = size_t{512} << 20;
  static constexpr int64_t kMaxCpuNs = 5'000'000'000;

  /// RESOURCE_EXHAUSTED if more than kMaxBytes have been taken in all.
  Status take_bytes(size_t bytes) {
    if (bytes > bytes_left_) return too_much_text();
    bytes_left_ -= bytes;
    return {};
  }
  /// The same check for memory that is freed again at once, and so is not counted.
  Status check_bytes(size_t bytes) const {
    return bytes > bytes_left_ ? too_much_text() : Status();
  }

  /// Counts regex work (start positions tried) and reads the clock every kPositionsPerLook
  /// positions. RESOURCE_EXHAUSTED after kMaxCpuNs. It uses CPU time, so that a busy machine does
  /// not refuse a text that an idle one accepts.
  Status count_regex_work(size_t positions) {
    positions_ += positions;
    if (positions_ < kPositionsPerLook) return {};
    positions_ = 0;
    const int64_t now = cpu_ns();
    if (start_ns_ == 0) start_ns_ = now;
    if (now - start_ns_ > kMaxCpuNs) return too_slow();
    return {};
  }

 private:
  static constexpr size_t kPositionsPerLook = 4096;

  static int64_t cpu_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }
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

  size_t bytes_left_ = kMaxBytes;
  size_t positions_ = 0;
  int64_t start_ns_ = 0;  // when the clock was first read; 0: not yet
};

}  // namespace shoal
