#include "runtime/base/thread_pool.h"

#include <chrono>
#include <pthread.h>
#include <sched.h>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/base/counted.h"
#include "runtime/base/process_limit.h"

namespace shoal {
namespace {

// Long enough to bridge the gaps inside a layer (tens of microseconds), and short compared with a
// time slice of the scheduler.
constexpr int kSpins = 4000;
// A wake-up costs some tens of microseconds, which is little compared with this.
constexpr auto kMostYielding = std::chrono::milliseconds(5);

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield does nothing on most cores, and isb waits about as long as pause
#endif
}

void bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // A refusal (cpuset changed meanwhile) costs speed, not correctness.
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

void set_float_environment() {
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kMaskAllExceptions = 0x1F80;
  _mm_setcsr(kMaskAllExceptions | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
  // FPCR.FZ flushes subnormal inputs and results. All other bits are zero: rounding to nearest
  // even, and no traps.
  constexpr uint64_t kFlushToZero = 1 << 24;
  asm volatile("msr fpcr, %0" : : "r"(kFlushToZero));
#endif
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::start(int threads, std::vector<int> cpus) {
  try {
    return std::make_unique<ThreadPool>(threads, std::move(cpus));
  } catch (const std::system_error& error) {
    return Status::error(Code::kResourceExhausted,
                         cat("start a team of ", counted(threads, "thread"), process_limit()),
                         error.code().value());
  }
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : threads_(threads), cpus_(std::move(cpus)) {
  team_.reserve(static_cast<size_t>(threads_ - 1));
  try {
    for (int thread = 1; thread < threads_; ++thread)
      team_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    end_team();  // a thread that runs must not outlive its pool
    throw;
  }
}

ThreadPool::~ThreadPool() {
  end_team();
}

void ThreadPool::end_team() {
  // stop_ is read after a look at generation_ that has acquired this increase. All three are
  // sequentially consistent, as in run_erased(), but nobody looks at sleepers_: the library counts
  // who is in wait() by the same rule, first the count and then a look at the word, so that either
  // notify_all() sees the sleeper or the sleeper sees the new generation.
  stop_.store(true, std::memory_order_seq_cst);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  generation_.notify_all();
  for (std::thread& thread : team_) thread.join();
}

void ThreadPool::prepare_caller() {
  caller_ready_ = true;
  if (!cpus_.empty()) bind_to(cpus_[0]);
}

void ThreadPool::run_erased(Erased body, const void* context) {
  body_ = body;
  context_ = context;
  // Relaxed, because a thread reads these three only after it has seen the new generation, whose
  // increase releases them. It is sequentially consistent, and so is the look at sleepers_: either
  // this thread sees the sleeper, or the sleeper's wait sees the new generation. Release and
  // acquire alone would allow a weakly ordered processor to miss both.
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) generation_.notify_all();
  body(context, 0);
  for (int spins = 0; spins < kSpins; ++spins) {
    // Acquire, so that this thread sees what the others wrote before they counted themselves out.
    if (running_.load(std::memory_order_acquire) == 0) return;
    relax();
  }
  wait_for_stragglers();
}

void ThreadPool::wait_for_stragglers() {
  const auto sleep_at = std::chrono::steady_clock::now() + kMostYielding;
  // Acquire, as in run_erased(). Each thread's decrease continues the release of those before it,
  // so the value of the last decrease makes the writes of all threads visible.
  while (running_.load(std::memory_order_acquire) != 0) {
    if (std::chrono::steady_clock::now() < sleep_at) {
      sched_yield();  // the stragglers may be waiting for this very core
      continue;
    }
    // Sequentially consistent, and in this order: the last thread counts itself out and then looks
    // whether the caller sleeps (work()). If it sees that the caller is not asleep, its decrease
    // came before the caller looks at running_ below, and that look gives 0.
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    const int left = running_.load(std::memory_order_seq_cst);
    if (left != 0) running_.wait(left, std::memory_order_seq_cst);
    // Relaxed: who still reads true wakes nobody, and the next true is later in this word's order.
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread) {
  set_float_environment();
  if (!cpus_.empty()) bind_to(cpus_[static_cast<size_t>(thread)]);
  uint32_t seen = 0;
  for (;;) {
    // Acquire, here and below: running_, body_, context_ and stop_ as they were before the caller
    // increased the generation.
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen && spins < kSpins; ++spins) {
      relax();
      now = generation_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      // Sequentially consistent, and in this order: the other half of what run_erased() says.
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      generation_.wait(seen, std::memory_order_seq_cst);
      // Relaxed: who still counts this thread wakes nobody, and its next increase is later in this
      // word's order.
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      now = generation_.load(std::memory_order_acquire);
    }
    seen = now;
    // Relaxed: the generation, which has been acquired, came after it.
    if (stop_.load(std::memory_order_relaxed)) return;
    body_(context_, thread);
    // Release: what this thread wrote. In this order and sequentially consistent, so that either
    // this thread sees that the caller sleeps, or the caller sees that no thread is left.
    const bool last = running_.fetch_sub(1, std::memory_order_seq_cst) == 1;
    if (last && caller_sleeps_.load(std::memory_order_seq_cst)) running_.notify_all();
  }
}

}  // namespace shoal
