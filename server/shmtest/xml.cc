#include "server/shmtest/xml.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace shoal::shmtest {
namespace {

/// Length in bytes of the UTF-8 character at the start of text, if XML may contain it; otherwise 0.
size_t xml_character(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(i < text.size() ? text[i] : 0);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  uint32_t code = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least[length] || surrogate || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF
             ? 0
             : length;
}

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = xml_character(text);
    const std::string_view character = text.substr(0, std::max<size_t>(1, length));
    text.remove_prefix(character.size());
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (character == "&") {
      out += "&amp;";
    } else if (character == "<") {
      out += "&lt;";
    } else if (character == ">") {
      out += "&gt;";
    } else if (character == "\"") {
      out += "&quot;";
    } else if (character == "'") {
      out += "&apos;";
    } else {
      out += character;
    }
  }
  return out;
}

}  // namespace shoal::shmtest
