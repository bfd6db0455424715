#include "server/shmtest/min_size.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace shoal::shmtest {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kFirstSize = uint64_t{64} << 20;
/// The answer is exact to this part of itself.
constexpr uint64_t kResolution = 32;

uint64_t in_pages(uint64_t bytes) {
  return std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
}

class Search {
 public:
  Search(const RunOptions& options, uint64_t most, const std::function<void(const Outcome&)>& ended)
      : options_(options), most_(most), ended_(ended) {}

  Result<RunResult> run() {
    result_.search.wanted = true;
    SHOAL_RETURN_IF_ERROR(try_in("host"));
    result_.control_failed = result_.stopped_by == 0 && result_.outcomes.front().failed();
    std::optional<uint64_t> size = std::min(kFirstSize, most_);
    while (size && !result_.control_failed && result_.stopped_by == 0) {
      SHOAL_RETURN_IF_ERROR(try_in(size_name(*size)));
      if (result_.stopped_by != 0) break;
      learn(*size);
      size = next();
    }
    return std::move(result_);
  }

 private:
  Status try_in(const std::string& name) {
    SHOAL_ASSIGN_OR_RETURN(Condition condition, parse_condition(name));
    SHOAL_ASSIGN_OR_RETURN(RunResult one, run_matrix({std::move(condition)}, options_, ended_));
    result_.stopped_by = one.stopped_by;
    for (Outcome& outcome : one.outcomes) result_.outcomes.push_back(std::move(outcome));
    if (result_.stopped_by == 0 && result_.outcomes.back().skipped())
      return Status::error(Code::kUnavailable,
                           cat("try ", name, ": ", result_.outcomes.back().reason()));
    return {};
  }

  void learn(uint64_t size) {
    const Outcome& outcome = result_.outcomes.back();
    if (!outcome.passed()) {
      result_.search.fails = size;
      return;
    }
    result_.search.passes = size;
    peak_ = in_pages(outcome.peak_bytes);
  }

  /// The size to try next; none if the answer is known.
  std::optional<uint64_t> next() const {
    const uint64_t passes = result_.search.passes, fails = result_.search.fails;
    if (passes == 0)
      return fails < most_ ? std::optional(std::min(fails * 2, most_)) : std::nullopt;
    // Most programs need no more than what they had at their peak.
    const uint64_t hope = peak_ > fails && peak_ < passes ? peak_ : 0;
    if (fails == 0) {
      if (passes == kPage) return std::nullopt;
      return hope != 0 ? std::min(hope, in_pages(passes / 2)) : in_pages(passes / 2);
    }
    if (passes - fails <= std::max(kPage, passes / kResolution)) return std::nullopt;
    return hope != 0 ? hope : in_pages(fails + (passes - fails) / 2);
  }

  const RunOptions& options_;
  const uint64_t most_;
  const std::function<void(const Outcome&)>& ended_;
  uint64_t peak_ = 0;  // of the last run that passed
  RunResult result_;
};

}  // namespace

std::string size_name(uint64_t bytes) {
  if (bytes % (uint64_t{1} << 20) == 0) return cat(bytes >> 20, "m");
  return bytes % 1024 == 0 ? cat(bytes >> 10, "k") : cat(bytes);
}

Result<RunResult> find_min_size(const RunOptions& options, uint64_t most,
                                const std::function<void(const Outcome&)>& ended) {
  return Search(options, most, ended).run();
}

}  // namespace shoal::shmtest
