#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "bench/gpu/rank_processes.h"
#ifdef SHOAL_GPU_CUDART
#include <cuda_runtime.h>
#endif

#include "runtime/base/cat.h"
#include "runtime/device/device.h"
#include "runtime/device/module_loader.h"
#include "tests/conformance/tree_cases.h"
#include "tests/gpu/gpu_cases.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 120;
constexpr int64_t kAreaBytes = 2 << 20;
constexpr uint64_t kSpinNs = 5'000'000'000;
constexpr size_t kFailureBytes = (1 + kShoalNameWords) * sizeof(uint32_t);

/// One rank of a group of threads, with all its memory.
struct PushRank {
  std::shared_ptr<Device> device;
  Device::Stream stream;
  Device::Event event;
  Device::Memory area, own, out;
  Device::Memory own_host, out_host, failure;  // pinned
};
constexpr size_t kMostFloats = 16 * 1024;
constexpr size_t kMostPlanes = 4;
constexpr size_t kBurst =
    // A rank enqueues this many all_reduces before it waits, each with its own memory.
    4;
constexpr size_t kOwnFloats = kMostPlanes * kMostFloats;

Result<PushRank> make_rank(const ShoalCudaModule& module) {
  PushRank rank;
  SHOAL_ASSIGN_OR_RETURN(rank.device, Device::open(module, 0));
  Device& device = *rank.device;
  SHOAL_ASSIGN_OR_RETURN(rank.stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(rank.event, device.make_event());
  SHOAL_ASSIGN_OR_RETURN(rank.area, device.allocate(kAreaBytes));
  SHOAL_ASSIGN_OR_RETURN(rank.own, device.allocate(kBurst * kOwnFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.out, device.allocate(kBurst * kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.own_host,
                         device.allocate_pinned(kBurst * kOwnFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.out_host,
                         device.allocate_pinned(kBurst * kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.failure, device.allocate_pinned(kFailureBytes));
  std::memset(rank.failure.get(), 0, kFailureBytes);
  return rank;
}

/// The arguments of the all_reduce with number `place` of a burst.
ShoalPushAllReduce arguments(const std::vector<PushRank>& group, int rank, const ReducePlan& plan,
                             size_t count, size_t place = 0) {
  ShoalPushAllReduce args{};
  args.rank = rank;
  args.world_size = static_cast<int32_t>(group.size());
  for (size_t r = 0; r < group.size(); ++r) {
    args.contributions[r] = plan.contributions[r];
    args.areas[r] = group[r].area.get();
  }
  args.area_bytes = kAreaBytes;
  const PushRank& mine = group[static_cast<size_t>(rank)];
  args.own = static_cast<const float*>(mine.own.get()) + place * kOwnFloats;
  args.pitch = static_cast<int64_t>(count);
  args.sum.values = plan.total_contributions();
  for (int i = 0; i < args.sum.values; ++i) {
    args.sum.merges[i] = static_cast<uint8_t>(plan.finish.merges[static_cast<size_t>(i)]);
  }
  args.sum.out = static_cast<float*>(mine.out.get()) + place * kMostFloats;
  args.sum.count = static_cast<int64_t>(count);
  args.spin_ns = kSpinNs;
  args.mark = static_cast<uint16_t>(count);
  args.failure = static_cast<uint32_t*>(mine.failure.get());
  return args;
}

/// Copies the rank's planes into its pinned memory.
void bring(PushRank& mine, const TreeCase& tree, int rank, size_t place = 0) {
  const std::vector<float>& own = tree.own[static_cast<size_t>(rank)];
  auto* to = static_cast<float*>(mine.own_host.get()) + place * kOwnFloats;
  std::copy(own.begin(), own.end(), to);
}

/// Enqueues the all_reduce, which reads from and writes to pinned memory.
Status enqueue(std::vector<PushRank>& group, int rank, const TreeCase& tree, size_t place = 0) {
  PushRank& mine = group[static_cast<size_t>(rank)];
  Device& device = *mine.device;
  const size_t own_bytes = tree.own[static_cast<size_t>(rank)].size() * sizeof(float);
  const ShoalPushAllReduce args = arguments(group, rank, tree.plan, tree.count, place);
  const auto* own_host = static_cast<const float*>(mine.own_host.get()) + place * kOwnFloats;
  SHOAL_RETURN_IF_ERROR(
      device.copy(const_cast<float*>(args.own), own_host, own_bytes, mine.stream.get()));
  SHOAL_RETURN_IF_ERROR(
      device.check(device.module().push_all_reduce(&args, mine.stream.get()), "push"));
  auto* out_host = static_cast<float*>(mine.out_host.get()) + place * kMostFloats;
  return device.copy(out_host, args.sum.out, tree.count * sizeof(float), mine.stream.get());
}

std::string wait_for(PushRank& mine) {
  SHOAL_EXPECT_OK(mine.device->record(mine.event.get(), mine.stream.get()));
  SHOAL_EXPECT_OK(mine.device->wait(mine.event.get(), Deadline::after_ms(20'000), {}));
  const uint32_t failure = *static_cast<const volatile uint32_t*>(mine.failure.get());
  return failure == 0 ? "" : cat("rank ", failure - 1, " did not come");
}

std::string compare(const PushRank& mine, const TreeCase& tree, size_t place = 0) {
  const auto* out = static_cast<const float*>(mine.out_host.get()) + place * kMostFloats;
  return std::memcmp(out, tree.sum.data(), tree.count * sizeof(float)) == 0
             ? ""
             : cat("sum ", place, " of a burst: ", tree.count, " floats have other bits");
}

/// Runs the all_reduces of the trees one after the other, without waiting between them.
std::string push(std::vector<PushRank>& group, int rank,
                 const std::vector<const TreeCase*>& trees) {
  PushRank& mine = group[static_cast<size_t>(rank)];
  for (size_t i = 0; i < trees.size(); ++i) bring(mine, *trees[i], rank, i);
  for (size_t i = 0; i < trees.size(); ++i) SHOAL_EXPECT_OK(enqueue(group, rank, *trees[i], i));
  std::string wrong = wait_for(mine);
  for (size_t i = 0; i < trees.size() && wrong.empty(); ++i) wrong = compare(mine, *trees[i], i);
  return wrong;
}

Result<std::vector<PushRank>> make_group(const std::string& path, int world_size) {
  SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(path));
  std::vector<PushRank> group;
  for (int rank = 0; rank < world_size; ++rank) {
    SHOAL_ASSIGN_OR_RETURN(PushRank made, make_rank(*module));
    group.push_back(std::move(made));
  }
  return group;
}

/// Runs the body in every rank of the group, in threads of this process.
std::string run_threads(std::vector<PushRank>& group,
                        const std::function<std::string(int rank)>& body) {
  std::vector<std::string> reports(group.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(group.size()); ++rank) {
    threads.emplace_back([&, rank] {
      std::string& report = reports[static_cast<size_t>(rank)];
      report = group[0].device->module().select(0) == 0 ? body(rank) : "select";
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all_reports(reports);
}

/// Runs many sums of changing sizes. They use the same slots again and again, and launch changing
/// numbers of blocks.
std::string ranks_as_threads(const Options& options, int world_size) {
  Result<std::vector<PushRank>> group = make_group(options.module, world_size);
  SHOAL_EXPECT_OK(group.status());
  std::vector<TreeCase> trees;
  for (const size_t count : {1, 3, 4, 576, 2'048, 2'049, 5'000, 10'007}) {
    trees.push_back(make_tree_case(16, 16, world_size, count, count));
    trees.push_back(make_tree_case(16, 5, world_size, count, count + 1));
  }
  const int rounds = options.quick ? 20 : 2000;
  std::atomic<bool> failed{false};
  return run_threads(*group, [&](int rank) -> std::string {
    Pattern pattern(7);  // makes the same choices on every rank
    for (int round = 0; round < rounds && !failed; ++round) {
      std::vector<const TreeCase*> burst(1 + pattern.below(kBurst));
      for (const TreeCase*& tree : burst) tree = &trees[pattern.below(trees.size())];
      const std::string wrong = push(*group, rank, burst);
      if (wrong.empty()) continue;
      failed = true;
      return cat("round ", round, ": ", wrong);
    }
    return "";
  });
}

#ifdef SHOAL_GPU_CUDART
std::string cuda_words(cudaError_t error) {
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

/// Captures one all_reduce in a graph and replays it with other values each time. One is an odd
/// number, so the parity of the slots changes with each replay and must come from the device. Every
/// fifth round calls it outside the graph.
std::string a_graph_is_replayed(const Options& options) {
  constexpr int kRanks = 2;
  Result<std::vector<PushRank>> group = make_group(options.module, kRanks);
  SHOAL_EXPECT_OK(group.status());
  std::vector<TreeCase> trees;
  for (uint64_t seed = 0; seed < 7; ++seed)
    trees.push_back(make_tree_case(16, 16, kRanks, 10'007, seed));
  const int rounds = options.quick ? 10 : 300;
  return run_threads(*group, [&](int rank) -> std::string {
    PushRank& mine = (*group)[static_cast<size_t>(rank)];
    auto* stream = static_cast<cudaStream_t>(mine.stream.get());
    if (const std::string wrong = push(*group, rank, {&trees[0]}); !wrong.empty()) return wrong;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    std::string wrong =
        cuda_words(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (!wrong.empty()) return wrong;
    SHOAL_EXPECT_OK(enqueue(*group, rank, trees[0]));
    wrong = cuda_words(cudaStreamEndCapture(stream, &graph));
    if (wrong.empty()) wrong = cuda_words(cudaGraphInstantiate(&replay, graph, 0));
    for (int round = 0; round < rounds && wrong.empty(); ++round) {
      const TreeCase& tree = trees[static_cast<size_t>(round) % trees.size()];
      if (round % 5 == 4) {
        wrong = push(*group, rank, {&tree});
        continue;
      }
      bring(mine, tree, rank);
      wrong = cuda_words(cudaGraphLaunch(replay, stream));
      if (wrong.empty()) wrong = wait_for(mine);
      if (wrong.empty()) wrong = compare(mine, tree);
      if (!wrong.empty()) wrong = cat("replay ", round, ": ", wrong);
    }
    return wrong;
  });
}
#endif

/// Runs one rank alone. Its kernel must give up in time, and leave the missing rank and the name of
/// its collective. Later kernels must end at once and leave that as it is.
std::string a_lost_rank_is_named(const Options& options) {
  Result<std::vector<PushRank>> group = make_group(options.module, 2);
  SHOAL_EXPECT_OK(group.status());
  const ReducePlan plan = make_reduce_plan(2, 2, 2);
  PushRank& mine = (*group)[1];
  ShoalPushAllReduce args = arguments(*group, 1, plan, 5000);
  args.spin_ns = 2'000'000'000;
  for (uint32_t call = 0; call < 3; ++call) {
    for (uint32_t i = 0; i < kShoalNameWords; ++i) args.name[i] = 100 * call + i + 1;
    const auto began = Clock::now();
    SHOAL_EXPECT_OK(mine.device->check(
        mine.device->module().push_all_reduce(&args, mine.stream.get()), "push"));
    SHOAL_EXPECT_OK(mine.device->record(mine.event.get(), mine.stream.get()));
    SHOAL_EXPECT_OK(mine.device->wait(mine.event.get(), Deadline::after_ms(10'000), {}));
    const double took = seconds_since(began);
    if (*args.failure != 1)
      return cat("call ", call, ": the word is ", *args.failure, ", not 1 for rank 0");
    for (uint32_t i = 1; i <= kShoalNameWords; ++i)
      if (args.failure[i] != i)
        return cat("call ", call, ": word ", i, " of the name is ", args.failure[i]);
    if (call == 0 && took < 1.9) return cat("it waited ", took, " s of 2");
    if (call > 0 && took > 1) return cat("call ", call, " waited ", took, " s after a failure");
  }
  return "";
}

/// Two ranks push the same number of floats, but for different collectives. Each rank must name the
/// other one and must sum nothing.
std::string ranks_in_different_collectives(const Options& options) {
  Result<std::vector<PushRank>> group = make_group(options.module, 2);
  SHOAL_EXPECT_OK(group.status());
  const TreeCase tree = make_tree_case(2, 2, 2, 5000, 1);
  return run_threads(*group, [&](int rank) -> std::string {
    if (const std::string wrong = push(*group, rank, {&tree}); !wrong.empty()) return wrong;
    PushRank& mine = (*group)[static_cast<size_t>(rank)];
    constexpr size_t kElsewhere = 1;
    ShoalPushAllReduce args = arguments(*group, rank, tree.plan, tree.count, kElsewhere);
    args.mark = static_cast<uint16_t>(7 + rank);
    std::memset(mine.out_host.get(), 0, tree.count * sizeof(float));
    SHOAL_EXPECT_OK(mine.device->copy(args.sum.out, mine.out_host.get(), tree.count * sizeof(float),
                                      mine.stream.get()));
    SHOAL_EXPECT_OK(mine.device->check(
        mine.device->module().push_all_reduce(&args, mine.stream.get()), "push"));
    SHOAL_EXPECT_OK(mine.device->copy(mine.out_host.get(), args.sum.out, tree.count * sizeof(float),
                                      mine.stream.get()));
    (void)wait_for(mine);
    const auto expected = static_cast<uint32_t>(1 + (1 - rank)) + kShoalOtherMark;
    if (*args.failure != expected) return cat("the word is ", *args.failure, ", not ", expected);
    const auto* const out = static_cast<const float*>(mine.out_host.get());
    const bool untouched = std::all_of(out, out + tree.count, [](float x) { return x == 0; });
    return untouched ? "" : "it has summed all the same";
  });
}

}  // namespace

void add_push_cases(const Options& options, std::vector<Case>& cases) {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    cases.push_back({cat("push/threads-", world_size), [=] {
                       return run_apart(kSeconds,
                                        [&] { return ranks_as_threads(options, world_size); });
                     }});
  }
#ifdef SHOAL_GPU_CUDART
  if (!options.stand_in) {
    cases.push_back({"push/graph", [=] {
                       return run_apart(kSeconds, [&] { return a_graph_is_replayed(options); });
                     }});
  }
#endif
  cases.push_back({"push/lost", [=] {
                     return run_apart(kSeconds, [&] { return a_lost_rank_is_named(options); });
                   }});
  cases.push_back({"push/other", [=] {
                     return run_apart(kSeconds,
                                      [&] { return ranks_in_different_collectives(options); });
                   }});
}

}  // namespace shoal::gpu
