#include "runtime/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal {
namespace {

// Long enough to bridge the gaps inside a layer (tens of microseconds), and short compared with a
// time slice of the scheduler.
constexpr int kSpins = 4000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
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
#endif
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : threads_(threads), cpus_(std::move(cpus)) {
  team_.reserve(static_cast<size_t>(threads_ - 1));
  for (int thread = 1; thread < threads_; ++thread)
    team_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
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
  running_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) generation_.notify_all();
  body(context, 0);
  for (int spins = 0; running_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      sched_yield();  // the stragglers may be waiting for this very core
    }
  }
}

void ThreadPool::work(int thread) {
  set_float_environment();
  if (!cpus_.empty()) bind_to(cpus_[static_cast<size_t>(thread)]);
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen && spins < kSpins; ++spins) {
      relax();
      now = generation_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      generation_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      now = generation_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    body_(context_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace shoal
