#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/pre_tokenizer.h"

namespace shoal {

struct AddedToken {
  std::string content;
  bool single_word = false;  ///< matches only between non-word characters
  bool lstrip = false;       ///< takes the white space on its left with it
  bool rstrip = false;
  bool normalized = true;  ///< looked for in the normalized text, in its own normalized spelling
  bool special = false;
  std::string spelling;  ///< what decoding gives: the normalized content where normalized
  bool skipped = false;  ///< left out by decode(skip_special)
};

/// The "added_tokens" of tokenizer.json: texts that become one id before the model sees the rest.
/// Immutable, thread-safe.
class AddedTokens {
 public:
  /// Ids are given as Hugging Face gives them: the vocabulary's own, else the next after it; a file
  /// that says another id is warned about. INVALID_ARGUMENT for damage and for two tokens of one
  /// normalized spelling.
  static Result<AddedTokens> parse(const Json& tokenizer, const BpeModel& model,
                                   const Normalizer& normalizer, std::string_view what);

  /// Cuts a valid UTF-8 text into token pieces and the texts between, whose views lie in `text`.
  /// With normalized, looks for the tokens of normalized text, else for the others.
  void split(std::string_view text, bool begins_input, bool normalized,
             std::vector<PieceList::Piece>& out) const;

  const AddedToken* find(int32_t id) const;
  int32_t max_id() const { return tokens_.empty() ? -1 : tokens_.rbegin()->first; }

 private:
  /// Leftmost-longest search for a set of texts.
  class Matcher {
   public:
    /// False: this text is already there, or empty.
    bool add(std::string text, int32_t id);
    void freeze();
    struct Match {
      size_t bytes = 0;
      int32_t id = -1;
    };
    /// The longest text that begins at byte `at`; id -1: none.
    Match longest_at(std::string_view text, size_t at) const;

   private:
    struct Range {
      size_t begin = 0;
      size_t end = 0;
    };
    std::map<std::string, int32_t> building_;
    std::vector<std::pair<std::string, int32_t>> sorted_;
    std::array<Range, 256> by_first_byte_{};
  };

  Status add(AddedToken token, int32_t id, const Normalizer& normalizer, std::string_view what,
             WorkLimit& limit);
  Status build_matchers(std::string_view what);

  std::map<int32_t, AddedToken> tokens_;
  Matcher raw_;
  Matcher normalized_;
};

}  // namespace shoal
