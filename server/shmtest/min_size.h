#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "server/shmtest/runner.h"

namespace shoal::shmtest {

/// The answer of a search is exact to one of so many parts of itself, or to a page.
inline constexpr uint64_t kSearchParts = 32;

/// Looks for the smallest /dev/shm in which the command passes, from a page to `most` bytes, by
/// bisection to kSearchParts. It assumes that what passes in one size passes in a larger one
/// too. The control comes first. Errors are those of run_matrix(), and UNAVAILABLE if a /dev/shm of
/// a size cannot be had here.
Result<RunResult> find_min_size(const RunOptions& options, uint64_t most,
                                const std::function<void(const Outcome&)>& ended);

/// The size to try next; nullopt if the answer is known. peak: the most bytes that /dev/shm had in
/// the last run that passed. All sizes are bytes, and after the first try a result is in whole
/// pages unless it is `most`.
std::optional<uint64_t> next_size(const SizeSearch& found, uint64_t peak, uint64_t most,
                                  uint64_t page);

/// The name of the condition with a /dev/shm of that size, in the largest unit that divides it:
/// 64m, 100k, 12345.
std::string size_name(uint64_t bytes);

}  // namespace shoal::shmtest
