#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

// The values of flags, from text. Every error is INVALID_ARGUMENT "FLAG must be WHAT, not VALUE".

/// A whole number in [min, max], base 10.
Result<int64_t> parse_int_flag(std::string_view flag, std::string_view text, int64_t min,
                               int64_t max);

/// Any 64-bit seed.
Result<uint64_t> parse_seed_flag(std::string_view flag, std::string_view text);

/// A finite number; its bounds are the request's own check (generation_request.h), the same for
/// every client.
Result<double> parse_number_flag(std::string_view flag, std::string_view text);

/// A SIZE in bytes: digits, then nothing or k, m, g, t (powers of 1024, any case), then optionally
/// iB or B: 4g, 512M, 4GiB, 1048576. No fractions; what does not fit in 63 bits is refused.
Result<uint64_t> parse_size_flag(std::string_view flag, std::string_view text);

/// Token ids: 1,2,3 (spaces allowed). Each is below 2^31; whether the model knows it is checked
/// later.
Result<std::vector<int64_t>> parse_ids_flag(std::string_view flag, std::string_view text);

/// One of the words.
Result<std::string> parse_choice_flag(std::string_view flag, std::string_view text,
                                      const std::vector<std::string>& words);

/// The candidate that needs the fewest edits to become text; empty when none is near (a third of
/// its length).
std::string nearest_word(std::string_view text, const std::vector<std::string>& candidates);

/// The text for a message: cut to 80 bytes, control characters shown as '?', so that an error stays
/// one line.
std::string shown(std::string_view text);

}  // namespace shoal
