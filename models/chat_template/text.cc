#include "models/chat_template/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "models/tokenizer/unicode.h"

namespace shoal::jinja {

Text::Text(std::string bytes, bool from_request) : bytes_(std::move(bytes)) {
  if (from_request) mark(0, bytes_.size());
}

bool Text::is_from_request(size_t byte) const {
  const auto after =
      std::upper_bound(from_request_.begin(), from_request_.end(), byte,
                       [](size_t at, const ByteSpan& span) { return at < span.begin; });
  return after != from_request_.begin() && byte < std::prev(after)->end;
}

void Text::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!from_request_.empty() && from_request_.back().end == begin) {
    from_request_.back().end = end;
  } else {
    from_request_.push_back({begin, end});
  }
}

void Text::append(std::string_view bytes, bool from_request) {
  const size_t begin = bytes_.size();
  bytes_ += bytes;
  if (from_request) mark(begin, bytes_.size());
}

void Text::append(const Text& other, size_t begin, size_t end) {
  const size_t at = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto span = std::lower_bound(other.from_request_.begin(), other.from_request_.end(), begin,
                               [](const ByteSpan& s, size_t byte) { return s.end <= byte; });
  for (; span != other.from_request_.end() && span->begin < end; ++span) {
    mark(at + std::max(span->begin, begin) - begin, at + std::min(span->end, end) - begin);
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

size_t byte_of_character(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) continue;
    if (index-- == 0) return at;
  }
  return at;
}

size_t find_in(std::string_view text, std::string_view mark, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (mark.empty()) return from;
  // glibc searches with the two-way algorithm, where std::string_view compares at every place.
  const void* const found =
      ::memmem(text.data() + from, text.size() - from, mark.data(), mark.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

bool is_python_space(char32_t c) {
  // Python also counts the four separators of ASCII, which Unicode's White_Space leaves out.
  return is_whitespace(c) || (c >= 0x1C && c <= 0x1F);
}

size_t skip_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_python_space(c.value)) break;
    at += c.bytes;
  }
  return at;
}

size_t skip_space_at_end(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const CodePoint c = code_point_before(text, end);
    if (!is_python_space(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

}  // namespace shoal::jinja
