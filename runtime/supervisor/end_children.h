#pragma once

namespace shoal {

/// For a process that is about to leave without its usual end. Kills its children and removes what
/// their libraries (NCCL) leave in /dev/shm, within about a second. It silences stderr first,
/// because other threads still watch the ranks and would report these ends as failures.
void end_children_at_once();

}  // namespace shoal
