#include "runtime/base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <ctime>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <sched.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/in_child.h"

namespace shoal {
namespace {

TEST(ThreadPoolTest, EveryThreadRunsOnceEachTime) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    std::vector<int> calls(static_cast<size_t>(threads),
                           0);  // only its own thread writes each element
    for (int round = 0; round < 500; ++round) {
      pool.run([&](int thread) { ++calls[static_cast<size_t>(thread)]; });
      for (const int count : calls) ASSERT_EQ(count, round + 1) << threads << " threads";
    }
  }
}

TEST(ThreadPoolTest, TheThreadsRunAtTheSameTime) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived = 0;
  pool.run([&](int) {
    ++arrived;
    while (arrived.load() < kThreads)
      std::this_thread::yield();  // hangs if one task had to wait for the end of another
  });
  EXPECT_EQ(arrived.load(), kThreads);
}

TEST(ThreadPoolTest, SplitCoversTheUnitsInOrderAndEvenly) {
  for (const int threads : {1, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t units : {0, 1, 2, 6, 7, 8, 1000}) {
      std::vector<int> hits(static_cast<size_t>(units), 0);
      std::atomic<int> calls = 0;
      pool.split(units, [&](int64_t begin, int64_t end) {
        ++calls;
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, units / threads + 1);
        for (int64_t unit = begin; unit < end; ++unit) ++hits[static_cast<size_t>(unit)];
      });
      EXPECT_EQ(calls.load(), std::min<int64_t>(units, threads));
      EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(units), 1));
    }
  }
}

TEST(ThreadPoolTest, AThreadThatCannotBeStartedIsAnErrorWithTheLimit) {
  const std::string said = in_child([]() -> std::string {
    constexpr uid_t kNobodyElse = 65'123;  // root has no such limit
    const struct rlimit limit { 5, 5 };
    if (::getuid() != 0) return "skip: only root can become a user without other processes";
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setuid(kNobodyElse) != 0)
      return "skip: no user";
    if (!ThreadPool::start(2).ok()) return "two were not granted";
    const Status refused = ThreadPool::start(16).status();
    return refused.code() == Code::kResourceExhausted ? std::string(refused.message())
                                                      : refused.to_string();
  });
  if (said.starts_with("skip")) GTEST_SKIP() << said;
  EXPECT_EQ(
      said,
      "start a team of 16 threads; its user may have 5 processes and threads (ulimit -u), and "
      "a container may limit them too (pids)");
}

TEST(ThreadPoolTest, SleepersWakeUp) {
  ThreadPool pool(3);
  std::atomic<int> calls = 0;
  for (int round = 0; round < 20; ++round) {
    // Long enough for the threads to stop spinning.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run([&](int) { ++calls; });
  }
  EXPECT_EQ(calls.load(), 60);
}

double cpu_seconds_of_this_thread() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

TEST(ThreadPoolTest, ACallerThatWaitsUsesNoProcessor) {
  constexpr double kWait = 0.6;
  ThreadPool pool(3);
  const double before = cpu_seconds_of_this_thread();
  std::atomic<int> done = 0;
  pool.run([&](int thread) {
    if (thread != 0) std::this_thread::sleep_for(std::chrono::duration<double>(kWait * thread / 2));
    ++done;
  });
  EXPECT_EQ(done.load(), 3);
  EXPECT_LT(cpu_seconds_of_this_thread() - before, kWait / 12);
}

TEST(ThreadPoolTest, EndsWithoutHavingRun) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(ThreadPoolTest, WhatTheThreadsWroteIsSeenByTheCaller) {
  ThreadPool pool(4);
  std::vector<int64_t> values(100'000);
  int64_t total = 0;
  for (int64_t round = 1; round <= 20; ++round) {
    pool.split(static_cast<int64_t>(values.size()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += round;
    });
    total += round;
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}),
              total * static_cast<int64_t>(values.size()));
  }
}

TEST(ThreadPoolTest, ThreadsAreBoundToTheirCpus) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  std::vector<int> allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) allowed.push_back(cpu);
  }
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    std::vector<int> cpus;
    for (size_t i = 0; i < threads; ++i) cpus.push_back(allowed[i % allowed.size()]);
    std::vector<cpu_set_t> seen(threads);
    std::thread([&] {  // uses a separate thread as the caller, because the caller stays bound
      ThreadPool pool(static_cast<int>(threads), cpus);
      pool.run([&](int thread) {
        sched_getaffinity(0, sizeof(cpu_set_t), &seen[static_cast<size_t>(thread)]);
      });
    })
        .join();
    for (size_t i = 0; i < threads; ++i) {
      EXPECT_EQ(CPU_COUNT(&seen[i]), 1) << "thread " << i << " of " << threads;
      EXPECT_TRUE(CPU_ISSET(cpus[i], &seen[i])) << "thread " << i << " of " << threads;
    }
  }
}

TEST(ThreadPoolTest, ACpuThatIsNotThereCostsNothing) {
  std::atomic<int> calls = 0;
  std::thread([&] {
    ThreadPool pool(2, {100'000, -1});
    pool.run([&](int) { ++calls; });
  }).join();
  EXPECT_EQ(calls.load(), 2);
}

/// What the register below has to hold: round to nearest and no traps.
#if defined(__x86_64__)
constexpr uint64_t kFloatControl = 0x9FC0;  // FTZ, DAZ, and all exceptions masked
#elif defined(__aarch64__)
constexpr uint64_t kFloatControl = 1 << 24;  // FZ
#endif
/// The register that says how this thread rounds, flushes and traps, without what has happened so
/// far.
uint64_t float_control() {
#if defined(__x86_64__)
  constexpr unsigned kExceptionsSeen = 0x3F;
  return __builtin_ia32_stmxcsr() & ~kExceptionsSeen;
#elif defined(__aarch64__)
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#endif
}

TEST(FloatEnvironmentTest, EveryThreadFlushesSubnormalsAndRoundsToNearest) {
  constexpr float kSmallest = std::numeric_limits<float>::min(), kSubnormal = 0x1p-128f;
  std::thread([] {
    // A new thread inherits these settings, so the team begins before the caller has them.
    ThreadPool pool(3);
    set_float_environment();
    volatile float smallest = kSmallest, subnormal = kSubnormal;
    std::vector<float> results(3, 1.0f), of_inputs(3, 1.0f);
    std::vector<uint64_t> controls(3, 0);
    pool.run([&](int thread) {
      const auto at = static_cast<size_t>(thread);
      results[at] = smallest * 0.5f;
      of_inputs[at] = subnormal * 8.0f;
      controls[at] = float_control();
    });
    EXPECT_EQ(results, std::vector<float>(3, 0.0f));
    EXPECT_EQ(of_inputs, std::vector<float>(3, 0.0f));
    EXPECT_EQ(controls, std::vector<uint64_t>(3, kFloatControl));
  }).join();
}

}  // namespace
}  // namespace shoal
