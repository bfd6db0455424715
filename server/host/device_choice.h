#pragma once
#include <string_view>

#include "runtime/transport/facts/host_facts.h"
#include "server/cli/flags.h"

namespace shoal {

// What ranks compute on. --device cuda insists on devices. --device auto takes them if every rank
// can have one, and otherwise the CPU, and then logs why. The choice is made before the ranks are
// started for the first time and never changes afterwards.

/// Looks for devices in a process of its own if the flags ask for them or leave it open, and turns
/// `auto` into a kind of device and an order of transports. `auto` looks only if the CUDA module
/// and a driver are here. Without a driver it costs nothing.
void choose_device(TransportFlags* flags, int world_size, GpuFacts* gpu);

/// Whether the ranks can compute a model on their devices. If not, no transport helps, not even one
/// that needs no device. Errors are those of check_devices() and, unless the flags allow results
/// that depend on the rank, of check_same_arithmetic().
Status check_for_model(const DeviceFlags& device, const GpuFacts& gpu);

/// Turns `auto` into the CPU, and logs why.
void stay_on_cpu(std::string_view why, TransportFlags* flags);

}  // namespace shoal
