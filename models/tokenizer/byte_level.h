#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

/// Appends the bytes to out in GPT-2's alphabet, which writes every byte as one printable character
/// (encoder.py, bytes_to_unicode).
void append_byte_level(std::string_view bytes, std::string& out);

/// Appends the bytes that a piece in that alphabet encodes. A piece that contains any other
/// character is appended unchanged.
void append_byte_level_decoded(std::string_view piece, std::string& out);

/// GPT-2's splitter (encoder.py), which ByteLevel uses unless use_regex is false.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace shoal
