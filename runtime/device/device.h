#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "runtime/base/deadline.h"
#include "runtime/base/status.h"
#include "runtime/device/cuda_module.h"

namespace shoal {

/// One device of the module, selected for the calling thread, and the owner of what is made through
/// it: C++ over the module's table. Used by one thread. Errors: INTERNAL with CUDA's own words,
/// RESOURCE_EXHAUSTED where memory is out.
class Device {
 public:
  /// The index is CUDA's.
  static Result<std::shared_ptr<Device>> open(const ShoalCudaModule& module, int index);

  /// Freed with the last copy of the pointer, through the module's table: that lives as long as the
  /// process, so what is made here may outlive the Device.
  using Memory = std::shared_ptr<void>;
  using Stream = std::shared_ptr<void>;
  using Event = std::shared_ptr<void>;

  Result<Memory> allocate(size_t bytes);         ///< of the device, zeroed
  Result<Memory> allocate_pinned(size_t bytes);  ///< of the host
  Result<Stream> make_stream();
  Result<Event> make_event();

  Status copy(void* to, const void* from, size_t bytes, void* stream);
  Status tree_sum(const ShoalTreeSum& sum, void* stream);
  Status record(void* event, void* stream);
  /// Waits until all that was enqueued before the event has run: a bounded spin, then naps. `look`
  /// is asked about every 100 ms and may end the wait with its error. DEADLINE_EXCEEDED; INTERNAL:
  /// the device failed.
  Status wait(void* event, Deadline deadline, const std::function<Status()>& look);

  /// INTERNAL (RESOURCE_EXHAUSTED for want of memory) with `what` and CUDA's words; ok for 0.
  Status check(int32_t error, const char* what) const;
  const ShoalCudaModule& module() const { return module_; }
  int index() const { return index_; }

 private:
  Device(const ShoalCudaModule& module, int index) : module_(module), index_(index) {}
  const ShoalCudaModule& module_;
  const int index_;
};

}  // namespace shoal
