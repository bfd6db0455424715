#include "runtime/supervisor/living_thread.h"

#include <utility>

#include "runtime/base/wait.h"

namespace shoal {

LivingThread::LivingThread() : thread_([this] { serve(); }) {}

LivingThread::~LivingThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LivingThread::begin(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  wait_until_ready(changed_, lock, [this] { return !work_; });
  work_ = std::move(work);
  changed_.notify_all();
}

void LivingThread::run(const std::function<void()>& work) {
  bool done = false;
  begin([&] {
    work();
    const std::lock_guard lock(mutex_);
    done = true;
  });
  std::unique_lock lock(mutex_);
  wait_until_ready(changed_, lock, [&] { return done; });
}

void LivingThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wait_until_ready(changed_, lock, [this] { return stop_ || work_; });
    if (!work_) return;
    lock.unlock();
    work_();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace shoal
