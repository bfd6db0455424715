/// Prints what a server's metrics say, for metrics_text_test.py: `print_metrics loading` before its
/// engine runs, `print_metrics serving` after some requests. The loop is real; its workers, and the
/// report of the ranks, are fakes.
#include <cstring>
#include <iostream>

#include "server/metrics/metrics.h"
#include "tests/server/serving/loop_fixture.h"
#include "tests/server/serving/served_model.h"

namespace shoal {
namespace {

RanksState ranks() {
  RanksState ranks;
  ranks.up = true;
  ranks.transport.world_size = 2;
  ranks.transport.order = {"shm", "tcp"};
  ranks.transport.rung = "tcp";
  ranks.transport.refusals = {{"shm", Phase::kReserve, Fault::kSharedMemory,
                               Status::error(Code::kResourceExhausted, "nothing is free")}};
  ranks.transport.needs = {{"shm", {{"slots", 4096, 1}}, {}}, {"tcp", {}, {}}};
  ranks.transport.add_restart("rank 1 was killed");
  ranks.collective_seconds = {1.5, 0.5};
  ranks.transport.waits = GroupWaits{{0.5, 0.0}, {0.0, 0.5}, GroupWaits::Last{1, 0.5}};
  ranks.start_phases = {{Phase::kSpawn, 0.25}, {Phase::kSelfTest, 0.5}};
  return ranks;
}

void serve(Metrics& metrics) {
  Script script;
  script.outputs = {{1, {40, 41, 1}}};
  InferenceLoop loop(test_model(), kLimits, script, {}, metrics.book());
  const MeasuredEngine engine(metrics, {[&loop] { return loop.load(); }, ranks});
  for (const int32_t tokens : {100, 5}) {
    const auto sink = std::make_shared<CollectingSink>();
    (void)loop.submit(request(tokens), sink);
    sink->wait();
  }
  metrics.count_http("/v1/completions", 200);
  metrics.count_http("/v1/completions", 200);
  metrics.count_http("/\n\"", 404);
  std::cout << metrics.text();
}

}  // namespace
}  // namespace shoal

int main(int count, char** arguments) {
  shoal::Metrics metrics({"a \"model\" \\ of\nmany", shoal::kLimits, 2});
  if (count > 1 && std::strcmp(arguments[1], "serving") == 0) {
    shoal::serve(metrics);
  } else {
    std::cout << metrics.text();
  }
  return 0;
}
