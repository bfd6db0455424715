#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/control/messages.h"

namespace shoal {

/// Computes until this thread has used this much more processor time.
void use_processor(double seconds);

/// A fault on request, for tests of what the front does about it. SHOAL_TEST_FAULT=RANK:PHASE:KIND
/// gives that rank a fault when it enters the phase in its first start. PHASE is spawn, open,
/// self-test, load, touch, warm-up, step-N, the N-th step of this start, or step-N-part-M: when it
/// has completed the M-th part of its work in that step, such as half of a layer. KIND is stop
/// (SIGSTOP), fail (an error of its own), spin (it computes for ever) or compute-S (it first uses S
/// seconds of processor time). After a comma follows the fault of the second start, and so on.
class TestFault {
 public:
  void set(const RankStart& start);
  Status enter(std::string_view phase) const;
  Status enter_step(uint64_t number) const;
  Status complete_part(uint64_t step, uint64_t part) const;

 private:
  std::string at_;  // PHASE:KIND of this rank; empty: none
};

}  // namespace shoal
