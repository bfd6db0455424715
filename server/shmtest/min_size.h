#pragma once
#include <cstdint>
#include <functional>

#include "server/shmtest/runner.h"

namespace shoal::shmtest {

/// Looks for the smallest /dev/shm in which the command passes, from 4 KiB to `most` bytes, by
/// bisection to a 32nd of its size. It assumes that what passes in one size passes in a larger one
/// too. The control comes first. Errors are those of run_matrix(), and UNAVAILABLE if a /dev/shm of
/// a size cannot be had here.
Result<RunResult> find_min_size(const RunOptions& options, uint64_t most,
                                const std::function<void(const Outcome&)>& ended);

/// The name of the condition with a /dev/shm of that size, in the largest unit that divides it:
/// 64m, 100k, 12345.
std::string size_name(uint64_t bytes);

}  // namespace shoal::shmtest
