#include "server/serving/result_check.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/counted.h"

namespace shoal {

Status check_result(const StepPlan& plan, const StepResult& result, int vocab_size) {
  std::vector<uint64_t> expected;
  for (const SequenceStep& sequence : plan.sequences) {
    if (sequence.sample) expected.push_back(sequence.id);
  }
  const auto same_id = [](const SampledToken& token, uint64_t id) { return token.id == id; };
  if (result.step != plan.step || !std::equal(result.tokens.begin(), result.tokens.end(),
                                              expected.begin(), expected.end(), same_id)) {
    return Status::error(Code::kInternal,
                         cat("the workers answered step ", result.step, " with ",
                             counted(result.tokens.size(), "token"), "; asked was step ", plan.step,
                             " for ", counted(expected.size(), "sequence"), ", in order"));
  }
  for (const SampledToken& token : result.tokens) {
    if (token.token_id < 0 || token.token_id >= vocab_size) {
      return Status::error(Code::kInternal,
                           cat("the workers chose token ", token.token_id, " of a vocabulary of ",
                               vocab_size, " in step ", plan.step));
    }
  }
  return Status();
}

}  // namespace shoal
