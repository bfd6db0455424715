#include "server/shmtest/min_size.h"

#include <algorithm>
#include <utility>

#include "runtime/base/page_size.h"

namespace shoal::shmtest {
namespace {

constexpr uint64_t kFirstSize = uint64_t{64} << 20;

/// At least one page, because a tmpfs of size=0 has no limit.
uint64_t in_pages(uint64_t bytes, uint64_t page) {
  return std::max(page, (bytes + page - 1) / page * page);
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
      size = next_size(result_.search, peak_, most_, page_size());
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
    peak_ = outcome.peak_bytes.value_or(0);
  }

  const RunOptions& options_;
  const uint64_t most_;
  const std::function<void(const Outcome&)>& ended_;
  uint64_t peak_ = 0;  // of the last run that passed
  RunResult result_;
};

}  // namespace

std::optional<uint64_t> next_size(const SizeSearch& found, uint64_t peak, uint64_t most,
                                  uint64_t page) {
  const uint64_t passes = found.passes, fails = found.fails;
  if (passes == 0) return fails < most ? std::optional(std::min(fails * 2, most)) : std::nullopt;
  peak = in_pages(peak, page);
  // Most programs need no more than what they had at their peak.
  const uint64_t hope = peak > fails && peak < passes ? peak : 0;
  if (fails == 0) {
    if (passes <= page) return std::nullopt;
    const uint64_t half = in_pages(passes / 2, page);
    return hope != 0 ? std::min(hope, half) : half;
  }
  if (passes - fails <= std::max(page, passes / kSearchParts)) return std::nullopt;
  return hope != 0 ? hope : in_pages(fails + (passes - fails) / 2, page);
}

std::string size_name(uint64_t bytes) {
  if (bytes % (uint64_t{1} << 20) == 0) return cat(bytes >> 20, "m");
  return bytes % 1024 == 0 ? cat(bytes >> 10, "k") : cat(bytes);
}

Result<RunResult> find_min_size(const RunOptions& options, uint64_t most,
                                const std::function<void(const Outcome&)>& ended) {
  return Search(options, most, ended).run();
}

}  // namespace shoal::shmtest
