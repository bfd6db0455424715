#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/deadline.h"
#include "runtime/base/gpu_name.h"
#include "runtime/base/status.h"
#include "runtime/device/cuda_module.h"

namespace shoal {

/// One device of the module as C++ over the module's table: it owns what it makes, returns errors
/// as Status and bounds its waits. It is selected for the thread that opens it, and only that
/// thread may use it. Errors: INTERNAL with CUDA's own message, RESOURCE_EXHAUSTED if the device is
/// out of memory.
class Device {
 public:
  /// `index` is CUDA's device number. Loads all kernels of the module.
  static Result<std::shared_ptr<Device>> open(const ShoalCudaModule& module, int index) {
    return open(module, GpuName{index});
  }
  /// The same, with what messages call the device. Its number must be CUDA's of now.
  static Result<std::shared_ptr<Device>> open(const ShoalCudaModule& module, GpuName name);

  /// Each is freed with the last copy of its pointer, through the module's table. The table lives
  /// as long as the process, so these may outlive the Device.
  using Memory = std::shared_ptr<void>;
  using Stream = std::shared_ptr<void>;
  using Event = std::shared_ptr<void>;

  Result<Memory> allocate(size_t bytes);         ///< device memory, zeroed
  Result<Memory> allocate_raw(size_t bytes);     ///< the same, with anything in it
  Result<Memory> allocate_pinned(size_t bytes);  ///< host memory, zeroed
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  Result<Room> memory_info() const;
  Result<Stream> make_stream();
  Result<Event> make_event();

  Status copy(void* to, const void* from, size_t bytes, void* stream);
  Status tree_sum(const ShoalTreeSum& sum, void* stream);
  /// Enqueues an op of the module's table. `what` names it in messages.
  template <typename Args>
  Status enqueue(int32_t (*op)(const Args* args, void* stream), const Args& args, void* stream,
                 const char* what) const {
    return check(op(&args, stream), what);
  }
  Status record(void* event, void* stream);
  /// Waits until everything that was enqueued before the event has run: it first polls a bounded
  /// number of times, then sleeps between polls. It calls `look` about every 100 ms, and an error
  /// from `look` ends the wait. DEADLINE_EXCEEDED: the deadline has passed. INTERNAL: the device
  /// failed.
  Status wait(void* event, Deadline deadline, const std::function<Status()>& look);

  /// ok for 0. Otherwise INTERNAL (RESOURCE_EXHAUSTED if memory is out) with `what` and CUDA's
  /// message.
  Status check(int32_t error, const char* what) const;
  const ShoalCudaModule& module() const { return module_; }
  int index() const { return name_.number; }
  const GpuName& name() const { return name_; }
  /// What messages call it: "GPU 0 (GPU-8f0c..., NVIDIA H100 80GB HBM3)".
  std::string text() const { return to_text(name_); }

 private:
  Device(const ShoalCudaModule& module, GpuName name) : module_(module), name_(std::move(name)) {}
  Result<Memory> allocate_by(int32_t (*entry)(size_t bytes, void** memory), size_t bytes);

  const ShoalCudaModule& module_;
  const GpuName name_;
};

}  // namespace shoal
