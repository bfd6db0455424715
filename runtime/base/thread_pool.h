#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

/// Sets this thread's floating-point rules: round to nearest even, subnormals flushed to zero (FTZ
/// and DAZ), as the bf16 dot product instruction does anyway. Every compute thread calls it, so
/// that all of them produce the same bits.
void set_float_environment();

/// A fixed team of threads that run one function together. The caller is thread 0. Threads that
/// wait for the next call, and the caller that waits for the others, spin briefly and then sleep on
/// a futex, so that a process uses the processor only if one of its threads computes. Not
/// reentrant; run() is called from one thread only.
class ThreadPool {
 public:
  /// threads >= 1. cpus: empty, or one CPU per thread. Thread i is bound to cpus[i]; the caller,
  /// thread 0, is bound at its first run(). RESOURCE_EXHAUSTED: no thread is left, with the limit.
  static Result<std::unique_ptr<ThreadPool>> start(int threads, std::vector<int> cpus = {});
  /// The same, where a thread that cannot be started throws std::system_error.
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  /// Calls body(thread) for thread = 0 .. size()-1 at the same time; returns when all have
  /// returned.
  template <typename Body>
  void run(const Body& body) {
    if (!caller_ready_) prepare_caller();
    if (threads_ == 1) {
      body(0);
      return;
    }
    run_erased(
        [](const void* context, int thread) { (*static_cast<const Body*>(context))(thread); },
        &body);
  }

  /// Calls body(begin, end) on each thread for its even, contiguous share of [0, units). No call
  /// for an empty share.
  template <typename Body>
  void split(int64_t units, const Body& body) {
    run([&](int thread) {
      const int64_t begin = units * thread / threads_;
      const int64_t end = units * (thread + 1) / threads_;
      if (begin < end) body(begin, end);
    });
  }

 private:
  using Erased = void (*)(const void* context, int thread);
  void prepare_caller();
  void end_team();
  void run_erased(Erased body, const void* context);
  void wait_for_stragglers();
  void work(int thread);

  const int threads_;
  const std::vector<int> cpus_;
  bool caller_ready_ = false;
  Erased body_ = nullptr;
  const void* context_ = nullptr;
  // Counts the calls of run(). It may wrap around, because no thread can miss a call.
  std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> team_;
};

}  // namespace shoal
