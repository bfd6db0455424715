#include "runtime/rank/test_fault.h"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <limits>

namespace shoal {

void use_processor(double seconds) {
  const auto used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  for (const double end = used() + seconds; used() < end;) continue;
}

void TestFault::set(const RankStart& start) {
  const char* text = std::getenv("SHOAL_TEST_FAULT");
  if (text == nullptr) return;
  std::string_view fault = text;
  for (int32_t i = 0; i < start.start_number; ++i) {
    const size_t comma = fault.find(',');
    fault = comma == fault.npos ? std::string_view() : fault.substr(comma + 1);
  }
  fault = fault.substr(0, fault.find(','));
  const std::string mine = cat(start.rank, ":");
  if (fault.starts_with(mine)) at_ = fault.substr(mine.size());
}

Status TestFault::enter(std::string_view phase) const {
  if (at_.empty() || !at_.starts_with(cat(phase, ":"))) return {};
  constexpr std::string_view kCompute = "compute-";
  const std::string_view kind = std::string_view(at_).substr(phase.size() + 1);
  if (kind == "spin") use_processor(std::numeric_limits<double>::infinity());
  if (kind.starts_with(kCompute)) use_processor(std::atof(kind.data() + kCompute.size()));
  if (at_.ends_with(":stop")) std::raise(SIGSTOP);
  if (at_.ends_with(":fail"))
    return Status::error(Code::kInternal, "SHOAL_TEST_FAULT asked for this failure");
  return {};
}

Status TestFault::enter_step(uint64_t number) const {
  return at_.empty() ? Status() : enter(cat("step-", number));
}

Status TestFault::complete_part(uint64_t step, uint64_t part) const {
  return at_.empty() ? Status() : enter(cat("step-", step, "-part-", part));
}

}  // namespace shoal
