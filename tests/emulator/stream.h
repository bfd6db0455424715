#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/emulator/flag_order.h"

namespace shoal::emulator {

/// Work that a stream does, in its turn. It owns copies of all arguments, as a launch does.
using Operation = std::function<void()>;

/// A device's queue takes about this many launches; then the call that enqueues waits.
inline constexpr uint64_t kMostOperations = 1000;

/// Operations in order, of one device. EMULATED_GPU_STREAMS decides who runs them, and when.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> make(int device);
  explicit Stream(int device) : device_(device) {}

  /// Adds the operation, or, while the stream is captured, keeps it for the graph. Waits as long as
  /// kMostOperations others have not ended.
  void enqueue(Operation operation);
  /// The number of operations that have been enqueued so far.
  uint64_t enqueued();
  /// Whether the first `ticket` operations have run. In streams that work when somebody waits for
  /// them, this runs them.
  bool has_done(uint64_t ticket);
  void wait(uint64_t ticket);
  void wait_for_all() { wait(enqueued()); }
  /// No operation follows. Those that were enqueued still run.
  void close();

  void begin_capture();
  std::optional<std::vector<Operation>> end_capture();  ///< nullopt: it was not captured
  bool is_captured();
  int device() const { return device_; }

 private:
  void work();
  void run_next(std::unique_lock<std::mutex>& lock);

  const int device_;
  Actor actor_;  ///< used by the operation that runs
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Operation> queue_;  ///< those after the first done_
  size_t next_ = 0;               ///< in queue_
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  bool running_ = false;
  bool closed_ = false;
  bool has_thread_ = false;
  std::optional<std::vector<Operation>> captured_;
};

/// A moment in a stream.
struct Event {
  std::shared_ptr<Stream> stream;
  uint64_t ticket = 0;
};

/// The stream that CUDA uses if none is given. It is never captured.
std::shared_ptr<Stream> default_stream(int device);
/// Waits for every stream of the process, as freeing memory does.
void wait_for_all_streams();

/// Returns once EMULATED_GPU_HANG's file does not name the device. A kernel calls it before it
/// runs.
void hang_if_planned(int device);

}  // namespace shoal::emulator
