#include "runtime/device/device.h"

#include <thread>

#include "runtime/base/quantity.h"

namespace shoal {
namespace {

constexpr int32_t kOutOfMemory = 2;  // cudaErrorMemoryAllocation
constexpr int kPolls = 2000;         // enough for a collective of a few microseconds
constexpr auto kNap = std::chrono::microseconds(50);
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);

std::string size_text(uint64_t bytes) {
  return bytes_text(static_cast<int64_t>(bytes));
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(const ShoalCudaModule& module, GpuName name) {
  std::shared_ptr<Device> device(new Device(module, std::move(name)));
  SHOAL_RETURN_IF_ERROR(device->check(module.select(device->index()), "select"));
  SHOAL_RETURN_IF_ERROR(device->check(module.load_kernels(), "load the kernels"));
  return device;
}

Status Device::check(int32_t error, const char* what) const {
  if (error == 0) return {};
  return Status::error(error == kOutOfMemory ? Code::kResourceExhausted : Code::kInternal,
                       cat(text(), ", ", what, ": ", module_.error_text(error)));
}

// The deleters below ignore errors. Nobody could handle one there, and if the device has failed,
// the next call that matters fails too.
Result<Device::Memory> Device::allocate_by(int32_t (*entry)(size_t bytes, void** memory),
                                           size_t bytes) {
  void* memory = nullptr;
  const int32_t error = entry(bytes, &memory);
  if (Status refused = check(error, cat("allocate ", size_text(bytes)).c_str()); !refused.ok()) {
    const Result<Room> room = memory_info();
    if (error != kOutOfMemory || !room.ok()) return refused;
    return refused.while_doing(cat(text(), " has ", size_text(room->free_bytes), " free of ",
                                   size_text(room->total_bytes),
                                   ", and nvidia-smi lists who has the rest"));
  }
  return Memory(memory, [&table = module_](void* m) { (void)table.release(m); });
}

Result<Device::Memory> Device::allocate(size_t bytes) {
  return allocate_by(module_.allocate, bytes);
}
Result<Device::Memory> Device::allocate_raw(size_t bytes) {
  return allocate_by(module_.allocate_raw, bytes);
}

Result<Device::Memory> Device::allocate_pinned(size_t bytes) {
  void* memory = nullptr;
  SHOAL_RETURN_IF_ERROR(check(module_.allocate_pinned(bytes, &memory),
                              cat("allocate ", size_text(bytes), " of pinned memory").c_str()));
  return Memory(memory, [&table = module_](void* m) { (void)table.release_pinned(m); });
}

Result<Device::Room> Device::memory_info() const {
  Room room;
  SHOAL_RETURN_IF_ERROR(
      check(module_.memory_info(&room.free_bytes, &room.total_bytes), "ask for free memory"));
  return room;
}

Result<Device::Stream> Device::make_stream() {
  void* stream = nullptr;
  SHOAL_RETURN_IF_ERROR(check(module_.create_stream(&stream), "create a stream"));
  return Stream(stream, [&table = module_](void* s) { (void)table.destroy_stream(s); });
}

Result<Device::Event> Device::make_event() {
  void* event = nullptr;
  SHOAL_RETURN_IF_ERROR(check(module_.create_event(&event), "create an event"));
  return Event(event, [&table = module_](void* e) { (void)table.destroy_event(e); });
}

Status Device::copy(void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  return check(module_.copy(to, from, bytes, stream), "copy");
}

Status Device::tree_sum(const ShoalTreeSum& sum, void* stream) {
  if (sum.count == 0) return {};
  return check(module_.tree_sum(&sum, stream), "tree sum");
}

Status Device::record(void* event, void* stream) {
  return check(module_.record_event(event, stream), "record an event");
}

Status Device::wait(void* event, Deadline deadline, const std::function<Status()>& look) {
  Clock::time_point looked = Clock::now();
  for (int64_t polls = 0;; ++polls) {
    int32_t done = 0;
    SHOAL_RETURN_IF_ERROR(check(module_.query_event(event, &done), "what was enqueued has failed"));
    if (done != 0) return {};
    if (polls < kPolls) continue;
    std::this_thread::sleep_for(kNap);
    if (deadline.passed())
      return Status::error(Code::kDeadlineExceeded, cat(text(), " has not finished in time"));
    if (Clock::now() - looked < kBetweenLooks) continue;
    looked = Clock::now();
    if (look) SHOAL_RETURN_IF_ERROR(look());
  }
}

}  // namespace shoal
