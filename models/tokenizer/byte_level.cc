#include "models/tokenizer/byte_level.h"

#include <array>

#include "models/tokenizer/unicode.h"

namespace shoal {
namespace {

constexpr char32_t kFirstShifted = 0x100;
constexpr char32_t kEnd = 0x144;  // for 68 bytes, the character with the byte's number is not
                                  // printable

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, kEnd> of_character{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (int16_t& byte : alphabet.of_character) byte = -1;
  char32_t next = kFirstShifted;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    const char32_t character = printable ? static_cast<char32_t>(byte) : next++;
    alphabet.of_byte[static_cast<size_t>(byte)] = character;
    alphabet.of_character[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

void append_byte_level(std::string_view bytes, std::string& out) {
  for (const char c : bytes) append_utf8(kAlphabet.of_byte[static_cast<uint8_t>(c)], out);
}

void append_byte_level_decoded(std::string_view piece, std::string& out) {
  const size_t before = out.size();
  for (size_t at = 0; at < piece.size();) {
    const CodePoint c = code_point_at(piece, at);
    if (c.value >= kEnd || kAlphabet.of_character[c.value] < 0) {
      out.resize(before);
      out += piece;
      return;
    }
    out += static_cast<char>(kAlphabet.of_character[c.value]);
    at += c.bytes;
  }
}

}  // namespace shoal
