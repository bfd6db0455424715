#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shoal {

/// A thread that lives as long as this object and runs work for other threads, one piece at a time.
/// Workers are started from it, because the kernel ends a worker when the thread that started it
/// ends (PR_SET_PDEATHSIG). Both functions may be called from any thread but this one.
class LivingThread {
 public:
  LivingThread();
  ~LivingThread();  ///< waits for the work that was begun

  /// Runs `work` there and returns when it is done.
  void run(const std::function<void()>& work);

  /// Begins `work` there as soon as the thread is free, and returns at once then.
  void begin(std::function<void()> work);

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;  // empty: the thread is free
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shoal
