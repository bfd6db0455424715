#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/byte_span.h"

namespace shoal::jinja {

/// Valid UTF-8 that knows which of its bytes came from the request. Everything else came from the
/// template or from the model's files. The origin follows each character through every operation,
/// so that the tokenizer can refuse to read a special token in a text that a client wrote.
class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool from_request);

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  /// The bytes that came from the request: sorted, not empty, and no two of them touch.
  const std::vector<ByteSpan>& from_request() const { return from_request_; }
  bool is_from_request(size_t byte) const;

  void append(std::string_view bytes, bool from_request);
  void append(const Text& other) { append(other, 0, other.size()); }
  /// Appends the bytes [begin, end) of `other`, with their origin.
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;

 private:
  void mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteSpan> from_request_;
};

/// The first function counts the characters (code points). The second one returns the byte at which
/// character `index` begins, or text.size() if the text has no such character.
size_t count_characters(std::string_view text);
size_t byte_of_character(std::string_view text, size_t index);

/// text.find(mark, from), in a time that grows with the text alone.
size_t find_in(std::string_view text, std::string_view mark, size_t from = 0);

/// Python's str.isspace() for one character.
bool is_python_space(char32_t c);
/// The byte at which the text begins or ends if the white space on that side is left out.
size_t skip_space(std::string_view text);
size_t skip_space_at_end(std::string_view text);

}  // namespace shoal::jinja
