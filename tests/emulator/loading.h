#pragma once

namespace shoal::emulator {

// What a device does with a kernel before its lanes run.

/// Called when a kernel is loaded. Waits for as long as the settings' file says that the driver
/// compiles.
void await_compiler();

/// Called for each launch. Adds a line to the settings' file if it is this process's first launch
/// of the kernel.
void note_launch(const void* kernel);

}  // namespace shoal::emulator
