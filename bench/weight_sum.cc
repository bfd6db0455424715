// Measures what the checksum of the weights adds to loading them from the page cache.
//
//   scripts/build release weight_sum && build/release/bench/weight_sum MODEL [ROUNDS]
//
// MODEL is a large checkpoint, such as bench/make_random_model.py writes. Each round loads it
// twice: once with the checksum, and once with a checksum that reads nothing. Each load runs in one
// process per rank, and its time is that of the slowest process.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "models/weights.h"

namespace {

constexpr int kMostRanks = 2;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds that one rank of `ranks` takes; -1: it cannot load the model.
double load(const std::string& model, shoal::World world, const shoal::KernelTable& kernels) {
  const auto config = shoal::load_model_config(model);
  const auto checkpoint = shoal::Checkpoint::open(model);
  if (!config.ok() || !checkpoint.ok()) return -1;
  const auto plan = shoal::make_shard_plan(*config, world);
  const auto dtype = shoal::resolve_dtype(*checkpoint, std::nullopt);
  if (!plan.ok() || !dtype.ok()) return -1;
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  shoal::ThreadPool pool(std::max(1, processors / world.size));
  const auto began = std::chrono::steady_clock::now();
  const auto weights = shoal::load_weights(*checkpoint, *config, *plan, *dtype, pool, kernels, {});
  if (!weights.ok()) return -1;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

/// The slowest of all ranks, which load at the same time.
double load_all(const std::string& model, int ranks, const shoal::KernelTable& kernels) {
  int pipe[2];
  if (::pipe(pipe) != 0) std::abort();
  for (int rank = 0; rank < ranks; ++rank) {
    if (::fork() != 0) continue;
    const double seconds = load(model, {rank, ranks}, kernels);
    std::_Exit(::write(pipe[1], &seconds, sizeof seconds) == sizeof seconds ? 0 : 1);
  }
  ::close(pipe[1]);
  double slowest = 0, seconds = 0;
  int loaded = 0;
  while (::read(pipe[0], &seconds, sizeof seconds) == sizeof seconds) {
    slowest = std::max(slowest, seconds);
    loaded += seconds < 0 ? 0 : 1;
  }
  ::close(pipe[0]);
  while (::wait(nullptr) > 0) {
  }
  if (loaded < ranks) {
    std::fprintf(stderr, "weight_sum: %s cannot be loaded\n", model.c_str());
    std::exit(1);
  }
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: weight_sum MODEL [ROUNDS]\n");
    return 64;
  }
  const std::string model = argv[1];
  const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  const shoal::KernelTable& with = *shoal::available_kernels().front();
  shoal::KernelTable without = with;
  without.checksum = [](const void*, size_t) { return uint64_t{0}; };
  std::printf("%u processors, kernel set %s\n", std::thread::hardware_concurrency(), with.name);
  std::printf("| ranks | load | without the checksum | with to without |\n|--:|--:|--:|--:|\n");
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    load_all(model, ranks, with);  // so that the file is in the page cache
    std::vector<double> whole, rest, ratios;
    for (int round = 0; round < rounds; ++round) {
      whole.push_back(load_all(model, ranks, with));
      rest.push_back(load_all(model, ranks, without));
      ratios.push_back(whole.back() / rest.back());
    }
    std::printf("| %d | %.2f s | %.2f s | %.3f |\n", ranks, median(whole), median(rest),
                median(ratios));
    std::fflush(stdout);  // or the next ranks would have these lines too
  }
  return 0;
}
