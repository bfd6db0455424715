#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shoal {

/// A thread that lives as long as this object and runs work for other threads, one piece at a time.
/// Workers are started from it, because the kernel ends a worker when the thread that started it
/// ends (PR_SET_PDEATHSIG).
class LivingThread {
 public:
  LivingThread();
  ~LivingThread();

  /// Runs `work` there and returns when it is done. May be called from any thread but this one.
  void run(const std::function<void()>& work);

 private:
  void serve();

  std::mutex turn_;  // one caller at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shoal
