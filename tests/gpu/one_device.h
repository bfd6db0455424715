#pragma once
#include <cstring>
#include <memory>
#include <string>

#include "runtime/base/deadline.h"
#include "runtime/device/device.h"
#include "runtime/device/module_loader.h"

namespace shoal::gpu {

/// A device with a stream, and a way to wait for it.
struct OneDevice {
  std::shared_ptr<Device> device;
  Device::Stream stream;
  Device::Event event;

  static Result<OneDevice> open(const std::string& path) {
    SHOAL_ASSIGN_OR_RETURN(const ShoalCudaModule* module, load_cuda_module(path));
    OneDevice one;
    SHOAL_ASSIGN_OR_RETURN(one.device, Device::open(*module, 0));
    SHOAL_ASSIGN_OR_RETURN(one.stream, one.device->make_stream());
    SHOAL_ASSIGN_OR_RETURN(one.event, one.device->make_event());
    return one;
  }
  Status finish() {
    SHOAL_RETURN_IF_ERROR(device->record(event.get(), stream.get()));
    return device->wait(event.get(), Deadline::after_ms(20'000), {});
  }
  /// Copies bytes from the host to the device or back, through pinned memory.
  Status put(void* to, const void* from, size_t bytes) {
    SHOAL_ASSIGN_OR_RETURN(const Device::Memory pinned, device->allocate_pinned(bytes));
    std::memcpy(pinned.get(), from, bytes);
    SHOAL_RETURN_IF_ERROR(device->copy(to, pinned.get(), bytes, stream.get()));
    return finish();
  }
  Status get(void* to, const void* from, size_t bytes) {
    SHOAL_ASSIGN_OR_RETURN(const Device::Memory pinned, device->allocate_pinned(bytes));
    SHOAL_RETURN_IF_ERROR(device->copy(pinned.get(), from, bytes, stream.get()));
    SHOAL_RETURN_IF_ERROR(finish());
    std::memcpy(to, pinned.get(), bytes);
    return {};
  }
};

}  // namespace shoal::gpu
