// The bundled model in a rank of its own: what is taken before a rank says that it is ready.
#include "runtime/worker/model_runner.h"

#include <fstream>
#include <gtest/gtest.h>

#include "tests/in_child.h"

namespace shoal {
namespace {

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

WorkerInit init_for(int max_num_batched_tokens) {
  WorkerInit init;
  init.rank = 0;
  init.world_size = 1;
  init.model_dir = SHOAL_SOURCE_DIR "/models/demo";
  init.dtype = Dtype::kF32;
  init.max_num_batched_tokens = max_num_batched_tokens;
  init.kv_blocks = 4;
  init.threads = 1;
  init.kernels = "reference";
  return init;
}

TEST(ModelRunner, ActivationsAreThereOnceItIsConnected) {
  constexpr int kRows = 4096;
  const std::string said = in_child([]() -> std::string {
    auto runner = ModelRunner::load(init_for(kRows), [](const LoadProgress&) {});
    if (!runner.ok()) return runner.status().to_string();
    const auto config = load_model_config(init_for(kRows).model_dir);
    if (!config.ok()) return config.status().to_string();
    const auto plan = make_shard_plan(*config, {0, 1});
    if (!plan.ok()) return plan.status().to_string();
    const int64_t bytes = Decoder::activation_bytes(*config, *plan, Dtype::kF32, kRows);
    const int64_t before = resident_bytes();
    if (const Status connected = (*runner)->connect(make_single_communicator()); !connected.ok())
      return connected.to_string();
    const int64_t more = resident_bytes() - before;
    // The kernel counts a process's pages in batches of some dozen per thread.
    return more > bytes - bytes / 100 ? "" : cat(more, " bytes more of ", bytes);
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace shoal
