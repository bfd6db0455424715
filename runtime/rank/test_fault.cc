#include "runtime/rank/test_fault.h"

#include <csignal>
#include <cstdlib>

namespace shoal {

void TestFault::set(const RankStart& start) {
  const char* text = std::getenv("SHOAL_TEST_FAULT");
  const std::string mine = cat(start.rank, ":");
  if (text != nullptr && start.start_number == 0 && std::string_view(text).starts_with(mine))
    at_ = text + mine.size();
}

Status TestFault::enter(std::string_view phase) const {
  if (at_.empty() || !at_.starts_with(cat(phase, ":"))) return {};
  if (at_.ends_with(":stop")) std::raise(SIGSTOP);
  if (at_.ends_with(":fail"))
    return Status::error(Code::kInternal, "SHOAL_TEST_FAULT asked for this failure");
  return {};
}

Status TestFault::enter_step(uint64_t number) const {
  return at_.empty() ? Status() : enter(cat("step-", number));
}

}  // namespace shoal
