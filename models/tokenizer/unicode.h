#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  ///< U+FFFD

/// Recognises UTF-8 byte by byte (The Unicode Standard, table 3-7).
class Utf8Automaton {
 public:
  enum class State {
    kComplete,  ///< this byte ended a character
    kPartial,   ///< more bytes must follow
    kInvalid,   ///< this byte is not allowed here; the automaton is reset
  };
  State step(uint8_t byte);
  bool at_start() const { return missing_ == 0; }

 private:
  int missing_ = 0;
  uint8_t low_ = 0x80;  // the next byte must be from low_ to high_
  uint8_t high_ = 0xBF;
};

/// Turns bytes that arrive piece by piece into valid UTF-8. Each maximal part that is not a
/// character becomes one U+FFFD, as in Rust's from_utf8_lossy and by the W3C's rule. A character is
/// written only when it is complete.
class LossyUtf8 {
 public:
  void write(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  Utf8Automaton automaton_;
  std::string partial_;
};

std::string to_valid_utf8(std::string_view bytes);

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;
};
/// Read the character that starts at byte `at`, or ends before byte `end`. Preconditions: valid
/// UTF-8, and there is a character.
CodePoint code_point_at(std::string_view text, size_t at);
CodePoint code_point_before(std::string_view text, size_t end);

void append_utf8(char32_t value, std::string& out);

/// True if the text is exactly one character.
bool is_one_character(std::string_view text);

/// The character classes of Hugging Face's splitters. They are defined as in Rust: White_Space; Nd,
/// Nl and No; P* and ASCII punctuation; \w of the regex crate (Alphabetic, M*, Nd, Pc,
/// Join_Control).
bool is_whitespace(char32_t c);
bool is_numeric(char32_t c);
bool is_punctuation(char32_t c);
bool is_word(char32_t c);

}  // namespace shoal
