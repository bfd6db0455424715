#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/tokenizer/bpe.h"
#include "models/tokenizer/byte_span.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/pre_tokenizer.h"

namespace shoal {

struct AddedToken {
  std::string content;
  bool single_word = false;  ///< matches only if no word character is next to it
  bool lstrip = false;       ///< the match includes the white space on its left
  bool rstrip = false;
  bool normalized = true;  ///< its normalized form is searched for in the normalized text
  bool special = false;
  std::string spelling;  ///< what decoding gives: the normalized content if normalized is set
  bool skipped = false;  ///< decode(skip_special) leaves it out
};

/// The "added_tokens" of tokenizer.json: texts that become one id each before the model sees the
/// rest. Immutable, thread-safe.
class AddedTokens {
 public:
  /// Ids are assigned as Hugging Face assigns them: the vocabulary's id of the text, or else one
  /// more than the largest id of the added tokens before it, and at least the size of the
  /// vocabulary. If the file says another id, a warning is logged. INVALID_ARGUMENT for damage, and
  /// for two tokens with the same normalized spelling.
  static Result<AddedTokens> parse(const Json& tokenizer, const BpeModel& model,
                                   const Normalizer& normalizer, std::string_view what);

  /// Cuts a valid UTF-8 text into tokens and the pieces of text between them, which are views of
  /// `text`. Searches for the tokens whose `normalized` equals the argument. If `untrusted` is not
  /// null, `text` is a part of its text, and special tokens that touch its spans are not found.
  void split(std::string_view text, bool begins_input, bool normalized,
             std::vector<PieceList::Piece>& out, const UntrustedText* untrusted = nullptr) const;

  /// Whether special tokens are searched for in normalized text, so that it must be known which of
  /// that text is untrusted.
  bool has_normalized_special() const;

  const AddedToken* find(int32_t id) const;
  int32_t max_id() const { return tokens_.empty() ? -1 : tokens_.rbegin()->first; }

 private:
  /// Leftmost-longest search for a set of texts.
  class Matcher {
   public:
    /// Returns false if this text is empty or has been added before.
    bool add(std::string text, int32_t id);
    void freeze();
    struct Match {
      size_t bytes = 0;
      int32_t id = -1;
    };
    using Accepts = std::function<bool(const Match&, size_t at)>;
    /// The longest text that begins at byte `at`, of those that `accepts` allows (null: all); id
    /// -1: none.
    Match longest_at(std::string_view text, size_t at, const Accepts& accepts = nullptr) const;

   private:
    struct Range {
      size_t begin = 0;
      size_t end = 0;
    };
    std::map<std::string, int32_t> building_;
    std::vector<std::pair<std::string, int32_t>> sorted_;
    std::array<Range, 256> by_first_byte_{};
  };

  Matcher::Accepts accepted(std::string_view text, const UntrustedText* untrusted) const;
  Status add(AddedToken token, int32_t id, const Normalizer& normalizer, std::string_view what,
             WorkLimit& limit);
  Status build_matchers(std::string_view what);

  std::map<int32_t, AddedToken> tokens_;
  Matcher raw_;
  Matcher normalized_;
};

}  // namespace shoal
