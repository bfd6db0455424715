#include "runtime/supervisor/living_thread.h"

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

void LivingThread::run(const std::function<void()>& work) {
  const std::lock_guard turn(turn_);
  std::unique_lock lock(mutex_);
  work_ = &work;
  changed_.notify_all();
  wait_until_ready(changed_, lock, [this] { return work_ == nullptr; });
}

void LivingThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wait_until_ready(changed_, lock, [this] { return stop_ || work_ != nullptr; });
    if (work_ == nullptr) return;
    lock.unlock();
    (*work_)();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace shoal
