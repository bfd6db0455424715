#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

/// GPT-2's alphabet: every byte as one printable character (encoder.py, bytes_to_unicode). Appends
/// the characters of the bytes to out.
void append_byte_level(std::string_view bytes, std::string& out);

/// The bytes that a piece in that alphabet stands for; a piece with any other character stands for
/// itself.
void append_byte_level_decoded(std::string_view piece, std::string& out);

/// GPT-2's splitter (encoder.py), which ByteLevel uses unless use_regex is false.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace shoal
