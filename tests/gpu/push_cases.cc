#include <atomic>
#include <cstring>
#include <thread>

#include "bench/gpu/rank_processes.h"
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

/// One rank of a group of threads, with all its memory.
struct PushRank {
  std::shared_ptr<Device> device;
  Device::Stream stream;
  Device::Event event;
  Device::Memory area, own, out;
  Device::Memory own_host, out_host, failure;  // pinned
};
constexpr size_t kMostFloats = 64 * 1024;
constexpr size_t kMostPlanes = 4;

Result<PushRank> make_rank(const ShoalCudaModule& module) {
  PushRank rank;
  SHOAL_ASSIGN_OR_RETURN(rank.device, Device::open(module, 0));
  Device& device = *rank.device;
  SHOAL_ASSIGN_OR_RETURN(rank.stream, device.make_stream());
  SHOAL_ASSIGN_OR_RETURN(rank.event, device.make_event());
  SHOAL_ASSIGN_OR_RETURN(rank.area, device.allocate(kAreaBytes));
  SHOAL_ASSIGN_OR_RETURN(rank.own, device.allocate(kMostPlanes * kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.out, device.allocate(kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.own_host, device.allocate_pinned(kMostPlanes * kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.out_host, device.allocate_pinned(kMostFloats * sizeof(float)));
  SHOAL_ASSIGN_OR_RETURN(rank.failure, device.allocate_pinned(sizeof(uint32_t)));
  std::memset(rank.failure.get(), 0, sizeof(uint32_t));
  return rank;
}

ShoalPushAllReduce arguments(const std::vector<PushRank>& group, int rank, const ReducePlan& plan, size_t count) {
  ShoalPushAllReduce args{};
  args.rank = rank;
  args.world_size = static_cast<int32_t>(group.size());
  for (size_t r = 0; r < group.size(); ++r) {
    args.contributions[r] = plan.contributions[r];
    args.areas[r] = group[r].area.get();
  }
  args.area_bytes = kAreaBytes;
  const PushRank& mine = group[static_cast<size_t>(rank)];
  args.own = static_cast<const float*>(mine.own.get());
  args.pitch = static_cast<int64_t>(count);
  args.sum.values = plan.total_contributions();
  for (int i = 0; i < args.sum.values; ++i) {
    args.sum.merges[i] = static_cast<uint8_t>(plan.finish.merges[static_cast<size_t>(i)]);
  }
  args.sum.out = static_cast<float*>(mine.out.get());
  args.sum.count = static_cast<int64_t>(count);
  args.spin_ns = kSpinNs;
  args.failure = static_cast<uint32_t*>(mine.failure.get());
  return args;
}

/// One all_reduce of one rank, from host memory to host memory.
std::string push_once(std::vector<PushRank>& group, int rank, const TreeCase& tree) {
  PushRank& mine = group[static_cast<size_t>(rank)];
  Device& device = *mine.device;
  const std::vector<float>& own = tree.own[static_cast<size_t>(rank)];
  std::memcpy(mine.own_host.get(), own.data(), own.size() * sizeof(float));
  SHOAL_EXPECT_OK(device.copy(mine.own.get(), mine.own_host.get(), own.size() * sizeof(float), mine.stream.get()));
  const ShoalPushAllReduce args = arguments(group, rank, tree.plan, tree.count);
  SHOAL_EXPECT_OK(device.check(device.module().push_all_reduce(&args, mine.stream.get()), "push"));
  SHOAL_EXPECT_OK(device.copy(mine.out_host.get(), mine.out.get(), tree.count * sizeof(float), mine.stream.get()));
  SHOAL_EXPECT_OK(device.record(mine.event.get(), mine.stream.get()));
  SHOAL_EXPECT_OK(device.wait(mine.event.get(), Deadline::after_ms(20'000), {}));
  if (const uint32_t failure = *args.failure; failure != 0) return cat("rank ", failure - 1, " did not come");
  return std::memcmp(mine.out_host.get(), tree.sum.data(), tree.count * sizeof(float)) == 0
             ? ""
             : cat(tree.count, " floats have other bits");
}

/// Many sums of changing size, which use the same slots over and over and blocks in changing numbers.
std::string ranks_as_threads(const Options& options, int world_size) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(options.module);
  SHOAL_EXPECT_OK(module.status());
  std::vector<PushRank> group;
  for (int rank = 0; rank < world_size; ++rank) {
    Result<PushRank> made = make_rank(**module);
    SHOAL_EXPECT_OK(made.status());
    group.push_back(std::move(*made));
  }
  const size_t most = static_cast<size_t>((*module)->push_floats(kAreaBytes, world_size, 16 / world_size + 2));
  std::vector<TreeCase> trees;
  for (const size_t count : {1, 3, 4, 576, 2'048, 2'049, 10'007, 32'768}) {
    trees.push_back(make_tree_case(16, 16, world_size, std::min(count + 0, most), count));
    trees.push_back(make_tree_case(16, 5, world_size, std::min(count + 0, most), count + 1));
  }
  const int rounds = options.quick ? 20 : 2000;
  std::vector<std::string> reports(static_cast<size_t>(world_size));
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& report = reports[static_cast<size_t>(rank)];
      if ((*module)->select(0) != 0) report = "select";
      Pattern pattern(7);  // the same choices on every rank
      for (int round = 0; round < rounds && report.empty() && !failed; ++round) {
        report = push_once(group, rank, trees[pattern.below(trees.size())]);
        if (!report.empty()) report = cat("round ", round, ": ", report), failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all_reports(reports);
}

/// A rank alone: its kernel gives up in time and names who is missing; later ones end at once and touch nothing.
std::string a_lost_rank_is_named(const Options& options) {
  const Result<const ShoalCudaModule*> module = load_cuda_module(options.module);
  SHOAL_EXPECT_OK(module.status());
  std::vector<PushRank> group;
  for (int rank = 0; rank < 2; ++rank) {
    Result<PushRank> made = make_rank(**module);
    SHOAL_EXPECT_OK(made.status());
    group.push_back(std::move(*made));
  }
  const ReducePlan plan = make_reduce_plan(2, 2, 2);
  PushRank& mine = group[1];
  ShoalPushAllReduce args = arguments(group, 1, plan, 5000);
  args.spin_ns = 200'000'000;
  for (int call = 0; call < 3; ++call) {
    const auto began = Clock::now();
    SHOAL_EXPECT_OK(mine.device->check((*module)->push_all_reduce(&args, mine.stream.get()), "push"));
    SHOAL_EXPECT_OK(mine.device->record(mine.event.get(), mine.stream.get()));
    SHOAL_EXPECT_OK(mine.device->wait(mine.event.get(), Deadline::after_ms(10'000), {}));
    const double took = seconds_since(began);
    if (*args.failure != 1) return cat("call ", call, ": the word is ", *args.failure, ", not 1 for rank 0");
    if (call == 0 && took < 0.19) return cat("it waited ", took, " s of 0.2");
    if (call > 0 && took > 0.15) return cat("call ", call, " waited ", took, " s after a failure");
  }
  return "";
}

}  // namespace

void add_push_cases(const Options& options, std::vector<Case>& cases) {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    cases.push_back({cat("push/threads-", world_size),
                     [=] { return run_apart(kSeconds, [&] { return ranks_as_threads(options, world_size); }); }});
  }
  cases.push_back({"push/lost", [=] { return run_apart(kSeconds, [&] { return a_lost_rank_is_named(options); }); }});
}

}  // namespace shoal::gpu
