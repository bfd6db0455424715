// Another engine's start-up, in one file: starts ranks over the first transport that works here,
// sums vectors over them, and survives the SIGKILL of a rank.
//
//   lift [RANKS]
//
// What an engine brings is the work (VectorSum below) and a front that makes plans (run_front).
// Everything else comes from the folders that docs/transport.md lists under "To lift this into
// another engine".
#include <cstdio>
#include <cstdlib>
#include <signal.h>
#include <string_view>
#include <vector>

#include "runtime/base/archive.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/rank/rank.h"
#include "runtime/supervisor/supervisor.h"
#include "runtime/supervisor/trial.h"
#include "runtime/transport/rungs/rung.h"

namespace lift {

constexpr int kSteps = 6;
constexpr int kKillBefore = 3;
constexpr int kRestarts = 3;
constexpr double kStartSeconds = 30;

/// One step: every rank fills a vector of `count` floats with rank + `add`, and all of them are
/// summed.
struct Plan {
  int32_t count = 0;
  float add = 0;
};
template <typename Archive>
void fields(Archive& archive, Plan& plan) {
  archive(plan.count, plan.add);
}

/// What one rank does. It runs in a process of its own.
class VectorSum final : public shoal::RankWork {
 public:
  shoal::Result<std::string> begin(shoal::RankContext& context) override {
    context_ = &context;
    const shoal::World world = context.communicator().world();
    reduce_ =
        shoal::make_reduce_plan(world.size, world.size, world.size);  // one leaf for each rank
    return std::string("ready to sum");
  }

  shoal::Result<std::string> step(uint64_t, std::string_view bytes) override {
    SHOAL_ASSIGN_OR_RETURN(const Plan plan, shoal::decode<Plan>(bytes, "plan"));
    shoal::Communicator& ranks = context_->communicator();
    const auto count = static_cast<size_t>(plan.count);
    const std::vector<float> own(count, static_cast<float>(ranks.world().rank) + plan.add);
    std::vector<float> sum(count);
    SHOAL_RETURN_IF_ERROR(ranks.all_reduce(reduce_, own.data(), sum.data(), count));
    return shoal::encode(sum);
  }

 private:
  shoal::RankContext* context_ = nullptr;
  shoal::ReducePlan reduce_;
};

shoal::SupervisorOptions options_for(int ranks) {
  shoal::SupervisorOptions options;
  for (const shoal::Rung& rung : shoal::rungs()) options.ladder.order.emplace_back(rung.name);
  options.group.world_size = ranks;
  options.group.startup_timeout_s = kStartSeconds;
  options.group.start.collective_timeout_ms = static_cast<int64_t>(kStartSeconds * 1000);
  options.max_restarts = kRestarts;
  options.hooks.on_restart = [](const shoal::Failure& failure, const shoal::RestartCount& count) {
    std::printf("restart %d of %d%s: %s\n", count.restarts, count.max_restarts,
                count.counts ? "" : " (this one does not count)",
                std::string(failure.why.message()).c_str());
  };
  return options;
}

int fail(const shoal::Status& why) {
  std::fprintf(stderr, "lift: %s\n", why.to_string().c_str());
  return 1;
}

/// True: every element is the sum of 0 .. ranks-1, and `add` once for each rank.
bool right(const std::vector<float>& sum, const Plan& plan, int ranks) {
  const float wanted =
      static_cast<float>(ranks * (ranks - 1) / 2) + plan.add * static_cast<float>(ranks);
  for (const float value : sum) {
    if (value != wanted) return false;
  }
  return sum.size() == static_cast<size_t>(plan.count);
}

int run_front(int ranks) {
  const shoal::HostFacts facts =
      shoal::gather_host_facts({});  // before any thread, because it forks probes
  auto group = shoal::Supervisor::start(options_for(ranks), facts);
  if (!group.ok()) return fail(group.status());
  std::printf("%s\n", shoal::summary((*group)->report()).c_str());
  bool killed = false;
  for (int step = 1; step <= kSteps;) {
    if (step == kKillBefore && !killed) {
      killed = true;
      ::kill((*group)->pids().back(), SIGKILL);
    }
    const Plan plan{100'000, static_cast<float>(step)};
    auto done = (*group)->step(static_cast<uint64_t>(step), shoal::encode(plan));
    if (!done.ok()) return fail(done.status());
    if (!done->result)
      continue;  // the ranks were lost and are started again: the same plan once more
    const auto sum = shoal::decode<std::vector<float>>(*done->result, "sum");
    if (!sum.ok()) return fail(sum.status());
    if (!right(*sum, plan, ranks))
      return fail(shoal::Status::error(shoal::Code::kDataLoss, "a wrong sum"));
    std::printf("step %d: %zu sums of %d ranks, each %g\n", step, sum->size(), ranks,
                static_cast<double>((*sum)[0]));
    ++step;
  }
  return 0;
}

}  // namespace lift

/// The front, or one of the two kinds of process that it starts from this same file.
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (words.size() >= 2 && words[0] == "worker") {
    lift::VectorSum work;
    return shoal::Rank(std::atoi(argv[2]), work).run();
  }
  if (words.size() == 3 && words[0] == "reserve-trial")
    return shoal::reserve_trial_main(argv[2], argv[3]);
  const int ranks = words.empty() ? 3 : std::atoi(argv[1]);
  if (ranks < 2 || ranks > 16) {
    std::fprintf(stderr, "lift: RANKS must be in [2, 16], not %s\n", argv[1]);
    return 64;
  }
  return lift::run_front(ranks);
}
