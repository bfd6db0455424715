#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/component.h"
#include "models/tokenizer/regex.h"
#include "models/tokenizer/work_limit.h"

namespace shoal {

/// A stretch of text that a pattern matched, or one between two matches.
struct Span {
  size_t begin = 0;  ///< bytes
  size_t end = 0;
  bool match = false;
};

/// The "pattern" of Replace and Split: {"String": text} or {"Regex": regex}. Immutable,
/// thread-safe.
class Pattern {
 public:
  /// INVALID_ARGUMENT if the field has another structure, UNIMPLEMENTED for a regex that cannot be
  /// used.
  static Result<Pattern> parse(const Component& component);
  static Result<Pattern> from_literal(std::string literal, std::string_view what);
  static Result<Pattern> from_regex(std::string_view regex, std::string_view what);

  /// Returns the matches and the spans between them, in order, so that they cover the text. Matches
  /// may be empty. Precondition: valid UTF-8. RESOURCE_EXHAUSTED if the limit is reached.
  Result<std::vector<Span>> spans(std::string_view text, WorkLimit& limit) const;

  /// The text of a plain, non-empty pattern; empty for a regex.
  const std::string& literal() const { return literal_; }

 private:
  std::string literal_;
  // Also set for an empty literal: it matches at each character, as the empty regex does.
  std::optional<Regex> regex_;
};

}  // namespace shoal
