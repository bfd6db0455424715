#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace shoal {

// Parse the values of flags. Every error is INVALID_ARGUMENT "FLAG must be WHAT, not VALUE".

/// A whole number in [min, max], base 10.
Result<int64_t> parse_int_flag(std::string_view flag, std::string_view text, int64_t min,
                               int64_t max);

/// A seed: any whole number in [0, 2^64 - 1].
Result<uint64_t> parse_seed_flag(std::string_view flag, std::string_view text);

/// A finite number. Its bounds are checked with the request (generation_request.h), so that they
/// are the same for every client.
Result<double> parse_number_flag(std::string_view flag, std::string_view text);

/// A SIZE in bytes: digits, then nothing or k, m, g, t (powers of 1024, any case), then optionally
/// iB or B: 4g, 512M, 4GiB, 1048576. Fractions are refused, and so are 2^63 bytes or more.
Result<uint64_t> parse_size_flag(std::string_view flag, std::string_view text);

/// Token ids: 1,2,3 (spaces allowed). Each is below 2^31; later code checks whether the model has
/// it.
Result<std::vector<int64_t>> parse_ids_flag(std::string_view flag, std::string_view text);

/// One of `words`, exactly as it is written there.
Result<std::string> parse_choice_flag(std::string_view flag, std::string_view text,
                                      const std::vector<std::string>& words);

/// The candidate that needs the fewest edits to become `text`. Empty if each needs more edits than
/// a third of the length of `text` (but 1 is always allowed), or if `text` is longer than 64 bytes.
std::string nearest_word(std::string_view text, const std::vector<std::string>& candidates);

/// The text with '?' for what a terminal takes for a command, for the end of a line, or for another
/// order of the letters: control characters (also those of two bytes in UTF-8), U+2028 and U+2029,
/// and the marks of bidirectional text. Use it for names of files and processes: anyone can choose
/// those, and a name with a newline would look like a line of our report.
std::string printable(std::string_view text);

/// The text in quotes for a message. It is cut to 80 bytes, and control characters become '?', so
/// that an error stays one line.
std::string shown(std::string_view text);

}  // namespace shoal
