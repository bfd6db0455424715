#pragma once
#include <string>

namespace shoal {

/// The path by which this process can start its own program once more: "/proc/self/exe", which is
/// right even after the file was replaced or removed, or else the path that the kernel was given at
/// the start (without /proc, or if the program was started through the dynamic loader, whose file
/// /proc/self/exe then is).
const char* program_path();

/// "; /proc is not mounted", or "" if it is. For the messages of whatever needs it.
const char* proc_hint();

}  // namespace shoal
