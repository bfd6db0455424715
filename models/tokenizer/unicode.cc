#include "models/tokenizer/unicode.h"

#include <utf8proc.h>

namespace shoal {

Utf8Automaton::State Utf8Automaton::step(uint8_t byte) {
  if (missing_ > 0) {
    if (byte < low_ || byte > high_) {
      missing_ = 0;
      return State::kInvalid;
    }
    low_ = 0x80;
    high_ = 0xBF;
    return --missing_ == 0 ? State::kComplete : State::kPartial;
  }
  if (byte < 0x80) return State::kComplete;
  if (byte < 0xC2 || byte > 0xF4) return State::kInvalid;
  missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  // These bounds exclude overlong forms, surrogates and everything above U+10FFFF.
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return State::kPartial;
}

void LossyUtf8::write(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const bool inside = !automaton_.at_start();
    Utf8Automaton::State state = automaton_.step(byte);
    if (state == Utf8Automaton::State::kInvalid && inside) {
      out += kReplacementCharacter;  // for the part before; this byte may begin a new character
      partial_.clear();
      state = automaton_.step(byte);
    }
    switch (state) {
      case Utf8Automaton::State::kInvalid:
        out += kReplacementCharacter;
        break;
      case Utf8Automaton::State::kPartial:
        partial_ += c;
        break;
      case Utf8Automaton::State::kComplete:
        out += partial_;
        out += c;
        partial_.clear();
        break;
    }
  }
}

void LossyUtf8::finish(std::string& out) {
  if (!partial_.empty()) out += kReplacementCharacter;
  partial_.clear();
  automaton_ = {};
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  LossyUtf8 decoder;
  decoder.write(bytes, out);
  decoder.finish(out);
  return out;
}

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> char32_t { return static_cast<uint8_t>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

CodePoint code_point_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return code_point_at(text, at);
}

void append_utf8(char32_t value, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

bool is_one_character(std::string_view text) {
  return !text.empty() && code_point_at(text, 0).bytes == text.size();
}

namespace {
utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
}  // namespace

bool is_whitespace(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_word(char32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  if (c == 0x200C || c == 0x200D) return true;  // Join_Control
  // These are Alphabetic but in none of the categories below: circled and squared letters.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189)) {
    return true;
  }
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace shoal
