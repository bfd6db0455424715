#pragma once
#include <string>
#include <vector>

#include "models/tokenizer/byte_span.h"
#include "models/tokenizer/component.h"
#include "models/tokenizer/pattern.h"
#include "models/tokenizer/work_limit.h"

namespace shoal {

/// A stretch of the input text on its way to the model.
struct NormalizedText {
  std::string text;
  /// True if its first character comes from the first character of the input. Metaspace depends on
  /// this.
  bool begins_input = false;
};

/// The "normalizer" of tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and
/// Sequences of them. Immutable, thread-safe.
class Normalizer {
 public:
  /// INVALID_ARGUMENT (damaged) or UNIMPLEMENTED (names what is not supported).
  static Result<Normalizer> parse(const Json& tokenizer, std::string_view what);

  bool empty() const { return steps_.empty(); }
  /// Normalizes in place. The text must be valid UTF-8 and stays so. RESOURCE_EXHAUSTED if the
  /// limit is reached.
  Status apply(NormalizedText& text, WorkLimit& limit) const;
  /// The same, and `marks` are carried from the bytes of the text to those of its normalized form.
  /// If they cannot be (a character was composed across the edge of a mark), all of it is marked.
  Status apply(NormalizedText& text, std::vector<ByteSpan>& marks, WorkLimit& limit) const;

 private:
  /// A part of a text of which all or nothing is marked.
  struct Part {
    std::string text;
    bool marked = false;
  };
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kStrip, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string content;  // Prepend, Replace
    Pattern pattern;      // Replace
    bool strip_left = false;
    bool strip_right = false;
  };
  static Result<Step> parse_step(const Component& component);
  static Status apply_step(const Step& step, NormalizedText& text, WorkLimit& limit);
  static Status apply_to_parts(const Step& step, NormalizedText& text, std::vector<Part>& parts,
                               WorkLimit& limit);

  std::vector<Step> steps_;
};

}  // namespace shoal
