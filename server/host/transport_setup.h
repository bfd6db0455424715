#pragma once
#include <string>
#include <vector>

#include "runtime/control/messages.h"
#include "runtime/supervisor/ladder.h"
#include "runtime/transport/facts/host_facts.h"
#include "runtime/transport/facts/stale_segments.h"
#include "server/cli/flags.h"

namespace shoal {

// From flags to what the ladder of transports needs. It knows nothing of models.

/// Removes what killed runs of this user have left in /dev/shm. Logs why it could not.
SweepResult clean_stale();

/// "removed PATH, BYTES" and "kept PATH, BYTES: WHY", for people.
std::vector<std::string> sweep_lines(const SweepResult& swept);

/// UNAVAILABLE: check_call_filter(). Otherwise gathers what the machine offers for transports
/// between this many ranks, and chooses the kind of device (choose_device); --clean-stale comes
/// first, and says on stderr what it has done. It forks probes, so call it before any thread is
/// started.
Result<HostFacts> facts_for(TransportFlags* flags, int world_size);

/// Copies what ranks need of the device flags, and of the devices that were found, into *start. If
/// the driver has to compile the kernels for them, it logs this, because the start then takes
/// minutes.
void set_device(const DeviceFlags& flags, const GpuFacts& gpu, RankStart* start);

/// Converts the flags to options for the ladder. reserved_bytes are those of weights, KV cache,
/// activations and logits (0: there is no model); the memory that the ranks' processes themselves
/// need is added here.
LadderOptions ladder_options(const TransportFlags& flags, int world_size, int64_t reserved_bytes);

}  // namespace shoal
