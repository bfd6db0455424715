#pragma once
#include <string>
#include <vector>

#include "models/tokenizer/component.h"
#include "models/tokenizer/pattern.h"
#include "models/tokenizer/work_limit.h"

namespace shoal {

/// A stretch of the input text on its way to the model.
struct NormalizedText {
  std::string text;
  bool begins_input =
      false;  ///< its first character stands for the first of the input (Metaspace asks)
};

/// The "normalizer" of tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and
/// Sequences of them. Immutable, thread-safe.
class Normalizer {
 public:
  /// INVALID_ARGUMENT (damaged) or UNIMPLEMENTED (by name).
  static Result<Normalizer> parse(const Json& tokenizer, std::string_view what);

  bool empty() const { return steps_.empty(); }
  /// In place; the text is and stays valid UTF-8. RESOURCE_EXHAUSTED by the limit.
  Status apply(NormalizedText& text, WorkLimit& limit) const;

 private:
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

  std::vector<Step> steps_;
};

}  // namespace shoal
