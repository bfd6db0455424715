#include "tests/emulator/stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/emulator/memory.h"
#include "tests/emulator/report.h"
#include "tests/emulator/settings.h"

namespace shoal::emulator {
namespace {

struct Known {
  std::mutex mutex;
  std::vector<std::weak_ptr<Stream>> streams;
  std::map<int, std::shared_ptr<Stream>> defaults;
};
Known& known() {
  static auto& one = *new Known;  // threads of streams may outlive static objects
  return one;
}

/// Rounds to nearest and flushes subnormals while it lives, as kernels do that are compiled with
/// --ftz=true.
class DeviceFloats {
 public:
#if defined(__x86_64__)
  DeviceFloats() : before_(_mm_getcsr()) {
    _mm_setcsr(0x9fc0);
  }
  ~DeviceFloats() {
    _mm_setcsr(before_);
  }

 private:
  const unsigned before_;
#elif defined(__aarch64__)
  DeviceFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{1} << 24));
  }
  ~DeviceFloats() {
    asm volatile("msr fpcr, %0" : : "r"(before_));
  }

 private:
  uint64_t before_ = 0;
#endif
};

}  // namespace

std::shared_ptr<Stream> Stream::make(int device) {
  auto stream = std::make_shared<Stream>(device);
  const std::lock_guard<std::mutex> lock(known().mutex);
  auto& all = known().streams;
  std::erase_if(all, [](const std::weak_ptr<Stream>& one) { return one.expired(); });
  all.push_back(stream);
  return stream;
}

void Stream::enqueue(Operation operation) {
  const Streams how = settings().streams;
  std::unique_lock<std::mutex> lock(mutex_);
  if (captured_.has_value()) {
    captured_->push_back(std::move(operation));
    return;
  }
  while (enqueued_ - done_ >= kMostOperations) {
    if (has_thread_) {
      changed_.wait(lock);
    } else {
      run_next(lock);
    }
  }
  queue_.push_back(std::move(operation));
  ++enqueued_;
  if (how == Streams::kThreads && !has_thread_) {
    has_thread_ = true;
    std::thread([self = shared_from_this()] { self->work(); }).detach();
  }
  changed_.notify_all();
  if (how == Streams::kAtOnce && !has_thread_) {
    while (done_ < enqueued_) run_next(lock);
  }
}

/// Runs the next operation, or waits until the one that another thread runs has ended.
void Stream::run_next(std::unique_lock<std::mutex>& lock) {
  if (running_) {
    changed_.wait(lock);
    return;
  }
  running_ = true;
  const Operation operation = std::move(queue_[next_++]);
  if (next_ == queue_.size()) {
    queue_.clear();
    next_ = 0;
  }
  const uint64_t number = done_ + 1;
  lock.unlock();
  if (first_report().empty()) {  // a device that has failed does nothing more
    const DeviceFloats floats;
    running_device = device_;
    actor_.begin(number);
    acting = &actor_;
    operation();
    acting = nullptr;
    running_device = -1;
  }
  lock.lock();
  running_ = false;
  ++done_;
  changed_.notify_all();
}

void Stream::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_ || done_ < enqueued_) {
    if (done_ < enqueued_) {
      run_next(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

uint64_t Stream::enqueued() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return enqueued_;
}

bool Stream::has_done(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!has_thread_ && done_ < ticket) run_next(lock);
  return done_ >= ticket;
}

void Stream::wait(uint64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (done_ < ticket) {
    if (has_thread_) {
      changed_.wait(lock);
    } else {
      run_next(lock);
    }
  }
}

void Stream::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!has_thread_ && done_ < enqueued_) run_next(lock);
  closed_ = true;
  changed_.notify_all();
}

void Stream::begin_capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  captured_.emplace();
}

std::optional<std::vector<Operation>> Stream::end_capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(captured_, std::nullopt);
}

bool Stream::is_captured() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return captured_.has_value();
}

std::shared_ptr<Stream> default_stream(int device) {
  {
    const std::lock_guard<std::mutex> lock(known().mutex);
    const auto found = known().defaults.find(device);
    if (found != known().defaults.end()) return found->second;
  }
  std::shared_ptr<Stream> made = Stream::make(device);
  const std::lock_guard<std::mutex> lock(known().mutex);
  return known().defaults.emplace(device, made).first->second;
}

void wait_for_all_streams() {
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard<std::mutex> lock(known().mutex);
    for (const std::weak_ptr<Stream>& one : known().streams) {
      if (std::shared_ptr<Stream> stream = one.lock()) all.push_back(std::move(stream));
    }
  }
  for (const std::shared_ptr<Stream>& stream : all) stream->wait_for_all();
}

void hang_if_planned(int device) {
  while (holds_number(settings().hang, device))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // no deadline: a poll
}

}  // namespace shoal::emulator
