#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/component.h"
#include "models/tokenizer/pattern.h"
#include "models/tokenizer/work_limit.h"

namespace shoal {

/// A text on its way to ids, cut into pieces. The text of a piece is never empty.
struct PieceList {
  struct Piece {
    std::string_view text;      ///< a view into buffers, or into text that its maker keeps
    bool begins_input = false;  ///< true if its first character comes from the input's first
    int32_t token = -1;         ///< if not -1, the piece is this added token, and text is not used
  };
  std::vector<Piece> pieces;
  std::deque<std::string> buffers;  ///< a deque, because growing it does not move the strings
};

/// The "pre_tokenizer" of tokenizer.json: ByteLevel, Split, Digits, Metaspace, Whitespace,
/// WhitespaceSplit, Punctuation, CharDelimiterSplit and Sequences of them. Immutable, thread-safe.
class PreTokenizer {
 public:
  /// INVALID_ARGUMENT (damaged) or UNIMPLEMENTED (names what is not supported).
  static Result<PreTokenizer> parse(const Json& tokenizer, std::string_view what);

  /// Splits (and rewrites) every piece that is not a token yet. RESOURCE_EXHAUSTED if the limit is
  /// reached.
  Status apply(PieceList& list, WorkLimit& limit) const;

 private:
  enum class Kind { kSplit, kCharacterClass, kByteLevel, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  using CharacterClass = int (*)(char32_t);  // neighbours of the same class stay together

  struct Step {
    Kind kind = Kind::kSplit;
    Pattern pattern;  // Split; ByteLevel with use_regex
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    // 0: no match; kEach: each character is a match of its own; any other class: each run of
    // characters of that class is one match.
    CharacterClass classify = nullptr;
    bool add_prefix_space = false;
    bool use_regex = false;
    std::string replacement;  // Metaspace
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };
  static constexpr int kEach = -1;

  static Result<Step> parse_step(const Component& component);
  static Result<Step> parse_split(const Component& component);
  static Result<Step> parse_metaspace(const Component& component);
  static Result<Behavior> parse_behavior(const Component& component, Behavior fallback,
                                         bool required);

  static std::vector<Span> class_spans(std::string_view text, CharacterClass classify);
  static std::vector<Span> merge(std::vector<Span> spans, Behavior behavior);
  static Status apply_step(const Step& step, PieceList& list, WorkLimit& limit);
  static Status split(const Step& step, const PieceList::Piece& piece,
                      std::vector<PieceList::Piece>& out, WorkLimit& limit);
  static Status rewrite_metaspace(const Step& step, PieceList& list, WorkLimit& limit);
  static Status add_prefix_spaces(PieceList& list, WorkLimit& limit);
  static Status to_byte_level(PieceList& list, WorkLimit& limit);

  std::vector<Step> steps_;
};

}  // namespace shoal
