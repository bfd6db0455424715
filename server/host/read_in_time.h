#pragma once
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/base/wait.h"
#include "server/host/model_watch.h"

namespace shoal {

/// What a thread reads, which may never be there. It belongs to the thread and to whoever waits.
template <class T>
class FileRead {
 public:
  /// The thread's work.
  void run(const std::function<Result<T>()>& read) {
    try {
      Result<T> got = read();
      const std::lock_guard lock(mutex_);
      result_.emplace(std::move(got));
    } catch (...) {  // no memory is left
      const std::lock_guard lock(mutex_);
      thrown_ = std::current_exception();
    }
    over_.notify_all();
  }

  /// False: it is not over by the deadline.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return wait_until_ready(over_, lock, deadline, [this] { return result_ || thrown_; });
  }

  /// Once the thread has ended.
  Result<T> take() {
    if (thrown_) std::rethrow_exception(thrown_);
    return std::move(*result_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<Result<T>> result_;
  std::exception_ptr thrown_;
};

/// Files that have not been read by then are said to be slow.
inline constexpr double kSlowFilesS = 5;

/// Calls read() on a thread of its own, if one can be started. A read of a file may never return if
/// its file system is gone, for example on a mount whose server is down. ABORTED
/// (Fault::kModelChanged): read() has not returned by the deadline. It has two seconds even if the
/// deadline is nearer. `what` is what it reads, for messages. `read` must own all that it uses,
/// because a thread that hangs is left behind.
template <class T>
Result<T> read_in_time(const std::string& what, Deadline deadline,
                       const std::function<Result<T>()>& read) {
  const auto reading = std::make_shared<FileRead<T>>();
  std::thread thread;
  try {
    thread = std::thread([reading, read] { reading->run(read); });
  } catch (const std::system_error&) {
    return read();
  }
  const RunningClock::time_point since = RunningClock::now();
  const Deadline shortest = Deadline::after_ms(kFilesAnswerMs);
  bool over = reading->wait(sooner(deadline, Deadline::after_s(kSlowFilesS)));
  if (!over && !deadline.passed()) {
    const double left = deadline.seconds_left();
    log_warning(cat(what, " has not been read after ", kSlowFilesS, " s",
                    std::isfinite(left)
                        ? cat("; --startup-timeout ends that in ", std::lround(left), " s")
                        : ""));
    over = reading->wait(deadline);
  }
  if (!over && !reading->wait(shortest)) {
    thread.detach();
    return file_does_not_answer(what, seconds_since(since));
  }
  thread.join();
  return reading->take();
}

}  // namespace shoal
