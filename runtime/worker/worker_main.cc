#include "runtime/worker/worker_main.h"

#include "runtime/rank/rank.h"
#include "runtime/worker/model_work.h"

namespace shoal {

int worker_main(int control_fd) {
  ModelWork work;
  return Rank(control_fd, work).run();
}

}  // namespace shoal
