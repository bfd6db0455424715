// Measures what the fingerprint of the arithmetic takes, which every rank computes at its start.
//
//   scripts/build release fingerprint_time && build/release/bench/fingerprint_time [ROUNDS]
//
// Each round computes it in a new process for each kernel set, because a rank computes it once,
// with cold caches. The second time in the same process is beside it, as what the computing alone
// takes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "runtime/base/thread_pool.h"
#include "runtime/worker/arithmetic.h"

namespace {

/// In milliseconds; -1: the fingerprint cannot be computed, or is wrong.
struct Times {
  double first = -1, second = -1;
};

double time_once(const shoal::KernelTable& kernels) {
  const auto began = std::chrono::steady_clock::now();
  const auto fingerprint = shoal::compute_fingerprint(kernels);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  return fingerprint.ok() && *fingerprint == shoal::expected_fingerprint() ? took.count() : -1;
}

Times time_in_a_new_process(const shoal::KernelTable& kernels) {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  const pid_t child = ::fork();
  if (child < 0) std::abort();
  if (child == 0) {
    shoal::set_float_environment();
    Times times;
    times.first = time_once(kernels);
    times.second = time_once(kernels);
    std::_Exit(::write(ends[1], &times, sizeof times) == sizeof times ? 0 : 1);
  }
  ::close(ends[1]);
  Times times;
  if (::read(ends[0], &times, sizeof times) != sizeof times) times = {};
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return times;
}

void print_range(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf(" %.2f (%.2f – %.2f) |", values[values.size() / 2], values.front(), values.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr, "usage: fingerprint_time [ROUNDS]\n");
    return 64;
  }
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 21;
  std::printf("ms, median of %d (least – most)\n", rounds);
  std::printf("| kernel set | first time in a process | again |\n|---|--:|--:|\n");
  for (const shoal::KernelTable* kernels : shoal::available_kernels()) {
    std::vector<double> first, second;
    for (int round = 0; round < rounds; ++round) {
      const Times times = time_in_a_new_process(*kernels);
      if (times.first < 0 || times.second < 0) {
        std::fprintf(stderr, "fingerprint_time: %s gives no right fingerprint\n", kernels->name);
        return 1;
      }
      first.push_back(times.first);
      second.push_back(times.second);
    }
    std::printf("| %s |", kernels->name);
    print_range(first);
    print_range(second);
    std::printf("\n");
  }
  return 0;
}
