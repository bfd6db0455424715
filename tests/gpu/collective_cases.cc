#include <cmath>
#include <csignal>

#include "bench/gpu/device_group.h"
#include "runtime/base/cat.h"
#include "tests/conformance/communicator_checks.h"
#include "tests/gpu/gpu_cases.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 240;

using GroupBody = std::function<std::string(Communicator&)>;

/// Runs the body in every rank of a group of the rung.
std::string run_group(const Options& options, const std::string& rung, int world_size,
                      const GroupBody& body) {
  GroupSetup setup;
  setup.rung = rung;
  setup.module = options.module;
  setup.nccl_library = options.nccl_library;
  setup.ranks_per_gpu = (world_size + options.devices - 1) / options.devices;
  setup.timeout_ms = 60'000;
  setup.any_room = options.any_room;
  if (const std::string reason = why_not(setup, world_size); !reason.empty()) return kSkip + reason;
  SHOAL_EXPECT_OK(prepare(setup, world_size));
  return all_reports(run_ranks(world_size, kSeconds, [&](const RankPlace& place) -> std::string {
    const Result<std::unique_ptr<Communicator>> communicator = open_staged(setup, place);
    SHOAL_EXPECT_OK(communicator.status());
    const std::string report = body(**communicator);
    // Wait here, because a rank that leaves takes memory with it that another rank may still read.
    if (report.empty()) SHOAL_EXPECT_OK((*communicator)->barrier());
    return report;
  }));
}

std::string sums_are_the_trees(const Options& options, const std::string& rung, int world_size) {
  std::vector<TreeCase> trees;
  for (const size_t count : {0, 1, 3, 255, 4096, 10'007}) {
    trees.push_back(make_tree_case(16, 16, world_size, count, count));
    // Some leaves are empty here, so that some ranks contribute nothing.
    trees.push_back(make_tree_case(16, 5, world_size, count, count + 1));
    if (world_size <= 9) trees.push_back(make_tree_case(9, 9, world_size, count, count + 2));
  }
  // This one is sent in pieces, of which the last is shorter.
  if (!options.quick) trees.push_back(make_tree_case(16, 16, world_size, (1 << 20) + 5, 5));
  return run_group(options, rung, world_size, [&](Communicator& communicator) {
    std::string wrong;
    for (const TreeCase& tree : trees) wrong += reduce_and_compare(communicator, tree);
    return wrong;
  });
}

/// Compares sums that may be added in any order, with the tolerance that the order can explain.
/// Elements of very different magnitudes lose the most.
std::string sums_are_close(const Options& options, const std::string& rung, int world_size) {
  const TreeCase tree = make_tree_case(16, 16, world_size, 10'007, 5);
  return run_group(options, rung, world_size, [&](Communicator& communicator) -> std::string {
    std::vector<float> out(tree.count);
    const std::vector<float>& own = tree.own[static_cast<size_t>(communicator.world().rank)];
    SHOAL_EXPECT_OK(communicator.all_reduce(tree.plan, own.data(), out.data(), tree.count));
    for (size_t i = 0; i < tree.count; ++i) {
      double magnitudes = 0;
      for (const std::vector<float>& planes : tree.own) {
        for (size_t at = i; at < planes.size(); at += tree.count)
          magnitudes += std::abs(planes[at]);
      }
      if (std::abs(out[i] - tree.sum[i]) > 1e-6 * magnitudes) {
        return cat("element ", i, ": ", out[i], " for ", tree.sum[i]);
      }
    }
    return "";
  });
}

std::string gathers_keep_rank_order(const Options& options, const std::string& rung,
                                    int world_size) {
  return run_group(options, rung, world_size, [&](Communicator& communicator) {
    std::string wrong;
    uint64_t round = 0;
    for (const size_t most : {1, 100, 9'000, 3'000'000}) {
      if (options.quick && most > 10'000) continue;
      std::vector<size_t> sizes;
      for (int rank = 0; rank < world_size; ++rank) {
        sizes.push_back(rank % 3 == 1 ? 0 : most / static_cast<size_t>(1 + rank));
      }
      wrong += gather_and_compare(communicator, 0, sizes, ++round);
      wrong += gather_and_compare(communicator, world_size - 1, sizes, ++round);
    }
    return wrong;
  });
}

std::string mixed_collectives_stay_apart(const Options& options, const std::string& rung,
                                         int world_size) {
  std::vector<TreeCase> trees;
  for (const size_t count : {1, 7, 64, 576, 2'048}) {
    trees.push_back(make_tree_case(16, 16, world_size, count, count + 10));
    trees.push_back(make_tree_case(16, 7, world_size, count, count + 11));
  }
  const int rounds = options.quick ? 10 : 200;
  return run_group(options, rung, world_size, [&](Communicator& communicator) -> std::string {
    Pattern shared(99);  // makes the same choices on every rank
    for (int round = 0; round < rounds; ++round) {
      std::string wrong;
      if (const size_t choice = shared.below(16); choice < 10) {
        wrong = reduce_and_compare(communicator, trees[choice]);
      } else if (choice < 15) {
        std::vector<size_t> sizes;
        for (int rank = 0; rank < world_size; ++rank)
          sizes.push_back(shared.below(40) * shared.below(3));
        const int root = static_cast<int>(shared.below(static_cast<size_t>(world_size)));
        wrong = gather_and_compare(communicator, root, sizes, static_cast<uint64_t>(round));
      } else if (const Status status = communicator.barrier(); !status.ok()) {
        wrong = status.to_string();
      }
      if (!wrong.empty()) return cat("round ", round, ": ", wrong);
    }
    return "";
  });
}

/// Runs two all_reduces. The last rank takes part in the first one only, and then waits or is
/// killed. The others must end in time, with an error that names it.
std::string a_lost_rank_is_named(const Options& options, const std::string& rung, int world_size,
                                 bool killed) {
  GroupSetup setup;
  setup.rung = rung;
  setup.module = options.module;
  setup.ranks_per_gpu = (world_size + options.devices - 1) / options.devices;
  // no deadline: only the tests of a rung run this, and they have the label clock
  setup.timeout_ms = 3'000;
  SHOAL_EXPECT_OK(prepare(setup, world_size));
  const TreeCase tree = make_tree_case(16, 16, world_size, 2048, 3);
  const int lost = world_size - 1;
  std::vector<std::string> reports =
      run_ranks(world_size, kSeconds, [&](const RankPlace& place) -> std::string {
        const Result<std::unique_ptr<Communicator>> communicator = open_staged(setup, place);
        SHOAL_EXPECT_OK(communicator.status());
        if (const std::string wrong = reduce_and_compare(**communicator, tree); !wrong.empty())
          return wrong;
        if (place.world.rank == lost) {
          if (killed) ::raise(SIGKILL);
          return place.exchange("").ok() ? "" : "the others are not done";
        }
        const auto began = Clock::now();
        const std::string wrong = reduce_and_compare(**communicator, tree);
        const double took = seconds_since(began);
        if (!killed) SHOAL_EXPECT_OK(place.exchange("").status());
        if (wrong.find(cat("rank ", lost)) == std::string::npos)
          return cat("names no rank ", lost, ": ", wrong);
        const bool in_time = took < 10 && (killed || took > 1.9);
        const bool timed_out = wrong.find("DEADLINE_EXCEEDED") != std::string::npos;
        return in_time && (killed || timed_out) ? "" : cat("after ", took, " s: ", wrong);
      });
  if (killed && reports.back() == "ended by signal 9") reports.back().clear();
  return all_reports(reports);
}
std::string a_missing_rank_is_named(const Options& options, const std::string& rung,
                                    int world_size) {
  return a_lost_rank_is_named(options, rung, world_size, false);
}
std::string a_killed_rank_is_named(const Options& options, const std::string& rung,
                                   int world_size) {
  return a_lost_rank_is_named(options, rung, world_size, true);
}

}  // namespace

void add_collective_cases(const Options& options, std::vector<Case>& cases) {
  for (const std::string rung : kRungs) {
    for (const int ranks : options.ranks) {
      const auto add = [&](const char* what,
                           std::string (*body)(const Options&, const std::string&, int)) {
        cases.push_back(
            {cat(rung, "/", ranks, "/", what), [=] { return body(options, rung, ranks); }});
      };
      if (rung == "nccl-sum") {
        add("sums", sums_are_close);
        continue;
      }
      add("sums", sums_are_the_trees);
      add("gathers", gathers_keep_rank_order);
      add("mixed", mixed_collectives_stay_apart);
      // NCCL itself does not notice a missing rank; the front does, and there is none here.
      if (ranks == 1 || rung == "nccl") continue;
      add("missing-rank", a_missing_rank_is_named);
      if (ranks == 2) add("killed-rank", a_killed_rank_is_named);
    }
  }
}

}  // namespace shoal::gpu
