#include "runtime/worker/worker_main.h"

#include <cstdlib>

#include "runtime/rank/rank.h"
#include "runtime/worker/model_work.h"

namespace shoal {

int worker_main(int control_fd) {
  ModelWork work;
  Rank rank(control_fd, work);
  const int code = rank.run();
  if (rank.must_end_at_once()) std::_Exit(code);
  return code;
}

}  // namespace shoal
